"""Randomness by address: against an independent computation, and different for different addresses."""

import hashlib
import hmac
from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st

from veilmeans.crypto import prg
from veilmeans.schemas.address import Address

SEED = bytes(range(32))
HERE = Address("run-1", 2, "sums.00.share", 3)
CHUNK = 1 << 15
"""Values in one chunk of the key stream (2^18 bytes)."""
KNOWN = "cb0e3f2bf15807aa65c5f7e8c973d7f6c3750078b1a1d81f6a2def3dc1322828"
"""Pinned, so that a later version cannot silently draw other masks for the same address."""


def independent(seed: bytes, address: Address, label: str, count: int) -> bytes:
    """Compute it from its definition: AES-256-ECB of a counter, keyed by HMAC-SHA256 of length-prefixed fields."""
    fields = [address.run, str(address.iteration), address.stage, str(address.shard)]
    text = b"veilmeans uniform " + b"".join(len(f.encode()).to_bytes(4, "big") + f.encode() for f in fields)
    key = hmac.new(seed, text + label.encode(), hashlib.sha256).digest()
    blocks = -(-count * 8 // 16)
    counters = b"".join(i.to_bytes(16, "big") for i in range(blocks))
    return Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(counters)[: count * 8]


def test_values_are_the_pinned_ones() -> None:
    drawn = prg.uniform(SEED, HERE, "share.1", (2, 2))
    assert drawn.tobytes() == independent(SEED, HERE, "share.1", 4)
    assert drawn.tobytes().hex() == KNOWN


@pytest.mark.parametrize("count", [0, 1, 2, 3, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 1])
def test_lengths_around_the_size_of_a_chunk(count: int) -> None:
    assert prg.uniform(SEED, HERE, "x", (count,)).tobytes() == independent(SEED, HERE, "x", count)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.uint64])
@pytest.mark.parametrize("count", [0, 1, 7, 8 * CHUNK + 1])
def test_every_type_is_filled_from_the_same_key_stream(dtype: type[np.unsignedinteger], count: int) -> None:
    drawn = prg.uniform(SEED, HERE, "x", (count,), dtype)
    assert (drawn.dtype, drawn.shape) == (dtype, (count,))
    words = -(-drawn.nbytes // 8)
    assert drawn.tobytes() == independent(SEED, HERE, "x", words)[: drawn.nbytes]


def test_the_same_address_gives_the_same_values_in_a_new_array() -> None:
    first, second = (prg.uniform(SEED, HERE, "x", (3, 5)) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert first.shape == (3, 5)
    assert first.dtype == np.uint64
    assert first.flags.writeable
    assert not np.shares_memory(first, second)


def test_any_change_of_seed_address_or_label_gives_unrelated_values() -> None:
    others = [
        (bytes([1]) + SEED[1:], HERE, "x"),
        (SEED, replace(HERE, run="run-2"), "x"),
        (SEED, replace(HERE, iteration=3), "x"),
        (SEED, replace(HERE, stage="sums.01.multiply"), "x"),
        (SEED, replace(HERE, shard=4), "x"),
        (SEED, HERE, "y"),
        (SEED, HERE, ""),
    ]
    drawn = [prg.uniform(SEED, HERE, "x", (64,)), *(prg.uniform(*other, (64,)) for other in others)]
    values = np.concatenate(drawn)
    assert len(np.unique(values)) == len(values)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Address("a1", 1, "s", 1), Address("a", 11, "s", 1)),
        (Address("a", 1, "1s", 1), Address("a", 11, "s", 1)),
        (Address("a", 1, "s1", 1), Address("a", 1, "s", 11)),
        (Address("a", 1, "s", 12), Address("a", 1, "s", 1)),
    ],
)
def test_a_digit_moved_to_the_next_field_changes_the_values(one: Address, other: Address) -> None:
    assert one.encode() != other.encode()
    assert not np.array_equal(prg.uniform(SEED, one, "x", (8,)), prg.uniform(SEED, other, "x", (8,)))


names = st.text("a1.", min_size=1, max_size=3)
numbers = st.integers(0, 12)
addresses = st.builds(Address, names, numbers, names, numbers)


@settings(max_examples=300)
@given(addresses, addresses, st.text("a1.", max_size=2), st.text("a1.", max_size=2))
def test_address_and_label_together_are_encoded_injectively(a: Address, b: Address, x: str, y: str) -> None:
    assert ((a, x) == (b, y)) == (a.encode() + x.encode() == b.encode() + y.encode())


def test_derived_seeds_differ_between_purposes() -> None:
    seeds = [prg.derive(SEED, purpose) for purpose in ("", "a", "b", "ab")] + [prg.derive(SEED[::-1], "a"), SEED]
    assert len(set(seeds)) == len(seeds)
    assert all(len(seed) == prg.SEED_SIZE for seed in seeds)
    assert prg.derive(SEED, "a") == hmac.new(SEED, b"veilmeans derive a", hashlib.sha256).digest()


def test_bytes_are_uniform() -> None:
    """χ² with 255 degrees of freedom has mean 255 and deviation 22.6; 400 is more than six deviations away."""
    counts = np.bincount(prg.uniform(SEED, HERE, "x", (1 << 17,)).view(np.uint8), minlength=256)
    expected = counts.sum() / 256
    assert 130 < ((counts - expected) ** 2 / expected).sum() < 400
