"""Bit injection, MUX and B2A against Python's integers."""

from functools import reduce
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.parties import make_shares, run_parties
from support.primitive_checks import EDGES, FEW, PARTIES, Outcome, parties, words
from veilmeans.crypto import bits
from veilmeans.crypto.correlations import DaBit
from veilmeans.schemas.arrays import Array, Arrays
from veilmeans.transforms.primitives.bit_injection import b2a, inject
from veilmeans.transforms.rounds.protocol import Protocol, Round
from veilmeans.transforms.rounds.trace import trace

SIZES = [1, 7, 8, 9, 64]
MODULUS = 2**64


def bit_shares(values: list[int], count: int, seed: int = 99) -> list[Array]:
    """Share packed bits by XOR; the shares of the padding are not zero."""
    packed = bits.pack(np.array(values, np.uint8))
    rng = np.random.default_rng(seed)
    shares = [rng.integers(0, 2**64, packed.size, np.uint64) for _ in range(count - 1)]
    return [*shares, reduce(np.bitwise_xor, shares, packed)]


def begin(count: int, bit: dict[str, list[int]], **values: list[int]) -> list[dict[int, Arrays]]:
    shares: dict[str, list[Array]] = {name: bit_shares(each, count, i) for i, (name, each) in enumerate(bit.items())}
    shares |= {
        name: make_shares(np.array(each, np.uint64), count, i + 9) for i, (name, each) in enumerate(values.items())
    }
    return [{0: {name: parts[i] for name, parts in shares.items()}} for i in range(count)]


def run_rounds(rounds: tuple[Round, ...], count: int, folder: Path, bit: list[int], **values: list[int]) -> Outcome:
    states, _ = run_parties(Protocol("p", rounds), begin(count, {"b": bit}, **values), folder)
    return Outcome(states)


@st.composite
def pairs(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Draw pairs of a bit and a value, as many as one of the sizes."""
    size = draw(st.sampled_from(SIZES))
    return draw(st.lists(st.tuples(st.integers(0, 1), words), min_size=size, max_size=size))


@FEW
@given(chosen=pairs(), count=parties)
def test_an_injection_is_the_product_with_the_bit(tmp_path: Path, chosen: list[tuple[int, int]], count: int) -> None:
    bit, x = ([pair[i] for pair in chosen] for i in (0, 1))
    outcome = run_rounds((inject("b", "x", "z"),), count, tmp_path, bit, x=x)
    assert outcome.names() == {"b", "x", "z"}
    assert outcome.total("z").tolist() == [b * v for b, v in chosen]
    assert outcome.total("x").tolist() == x


@pytest.mark.parametrize("count", PARTIES)
@pytest.mark.parametrize("size", SIZES)
def test_injection_and_b2a_of_every_size(tmp_path: Path, size: int, count: int) -> None:
    values = [EDGES[i % len(EDGES)] for i in range(size)]
    for flip in (0, 1):
        bit = [(i + flip) % 2 for i in range(size)]
        both = (inject("b", "x", "z"), b2a("b", "x", "a"))
        outcome = run_rounds(both, count, tmp_path, bit, x=values)
        assert outcome.total("z").tolist() == [b * v for b, v in zip(bit, values, strict=True)]
        assert outcome.total("a").tolist() == bit


@pytest.mark.parametrize("count", PARTIES)
def test_an_injection_may_replace_its_value_and_keeps_its_shape(tmp_path: Path, count: int) -> None:
    x = np.arange(1, 16, dtype=np.uint64).reshape(3, 5)
    bit = [1, 0, 0, 1, 1] * 3
    states = begin(count, {"b": bit})
    for state, share in zip(states, make_shares(x, count), strict=True):
        state[0] = {**state[0], "x": share}
    protocol = Protocol("p", (b2a("b", "x", "a"), inject("b", "x", "x")))
    outcome = Outcome(run_parties(protocol, states, tmp_path)[0])
    np.testing.assert_array_equal(outcome.total("x"), x * np.array(bit, np.uint64).reshape(3, 5))
    np.testing.assert_array_equal(outcome.total("a"), np.reshape(bit, (3, 5)))


@FEW
@given(chosen=pairs(), count=parties)
def test_b2a_shares_the_bit_by_sum(tmp_path: Path, chosen: list[tuple[int, int]], count: int) -> None:
    bit = [b for b, _ in chosen]
    outcome = run_rounds((b2a("b", "x", "a"),), count, tmp_path, bit, x=[v for _, v in chosen])
    assert outcome.names() == {"b", "x", "a"}
    assert outcome.total("a").tolist() == bit


@pytest.mark.parametrize("count", PARTIES)
@pytest.mark.parametrize("size", [8, 13, 64])
def test_b2a_of_all_packed_bits_converts_the_padding_too(tmp_path: Path, size: int, count: int) -> None:
    """The result is flat and as long as the packed bits, if no array gives the shape."""
    bit = [int(i % 3 == 1) for i in range(size)]
    outcome = run_rounds((b2a("b", None, "a"),), count, tmp_path, bit)
    assert outcome.names() == {"b", "a"}
    packed = outcome.xor("b")
    assert outcome.total("a").tolist() == bits.unpack(packed, 64 * packed.size).tolist()
    np.testing.assert_array_equal(bits.unpack(packed, size), bit)
    (stage,) = trace(Protocol("p", (b2a("b", None, "a"),)), [{"b": (packed.shape, "uint64")}] * count)
    assert [need.kind for need in stage.needs] == [DaBit(count, 64 * packed.size)]
