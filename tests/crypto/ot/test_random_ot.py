"""Random OTs: chosen strings, keys renewed and different by session, direction and address, Δ that stays secret."""

import os
from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st

from support.ot_dealing import deal_cots, sessions
from veilmeans.crypto.ot.blocks import Blocks
from veilmeans.crypto.ot.cot_supply import Supply
from veilmeans.crypto.ot.ot_arrays import OtRequest, count_cots, take_chosen, take_offered
from veilmeans.crypto.ot.random_ot import OTS_PER_KEY, HashKeys, RandomOtReceiver, RandomOtSender, padded


@settings(max_examples=20, deadline=None)
@given(counts=st.lists(st.integers(1, 700), min_size=1, max_size=4))
def test_the_receiver_gets_the_chosen_string(counts: list[int]) -> None:
    delta, q, t = deal_cots(sum(map(padded, counts)))
    own, peers = sessions()
    sender = RandomOtSender(Supply(iter([q])), delta, HashKeys.of(own))
    receiver = RandomOtReceiver(Supply(iter([t])), HashKeys.of(peers))
    for count in counts:
        zero, one = sender.take(count)
        choices, chosen = receiver.take(count)
        assert chosen.shape == (padded(count) // OTS_PER_KEY, OTS_PER_KEY, 2)
        assert (chosen == np.where(choices[..., None] == 1, one, zero)).all()
        assert not (zero == one).all(2).any()


def test_the_hash_is_aes_with_a_feed_forward() -> None:
    """A known vector: FIPS 197's example key is replaced by the session's first one, computed apart."""
    session, _ = sessions()
    stream = Cipher(algorithms.AES(session.public("hash")), modes.CTR(bytes(16))).encryptor()
    key = stream.update(bytes(16))
    _, q, _ = deal_cots(OTS_PER_KEY)
    encrypted = Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(q.tobytes())
    hashed = HashKeys.of(session).hash(q[None])
    assert (hashed[0] == np.frombuffer(encrypted, np.uint64).reshape(-1, 2) ^ q).all()


def test_no_key_serves_two_blocks_sessions_directions_or_addresses() -> None:
    """Equal COTs hash to other strings wherever the key must differ: a reused tweak would make them equal."""
    own, _ = sessions()
    same = np.full((3, OTS_PER_KEY, 2), 7, np.uint64)
    variants = [
        own,
        replace(own, nonce=os.urandom(32)),
        replace(own, sender=1, receiver=0),
        replace(own, receiver=2),
        replace(own, sender=2),
        own.at(replace(own.address, iteration=1)),
        own.at(replace(own.address, shard=1)),
        own.at(replace(own.address, stage="other")),
        own.at(replace(own.address, run="other")),
    ]
    firsts = {row.tobytes() for session in variants for row in HashKeys.of(session).hash(same).reshape(-1, 2)}
    assert len(firsts) == 3 * len(variants)
    assert (HashKeys.of(own).hash(same) == HashKeys.of(replace(own, seed=b"")).hash(same)).all()


def strings(delta: Blocks, q: Blocks, hashed: bool) -> Blocks:
    session, _ = sessions()
    sender = RandomOtSender(Supply(iter([q])), delta, HashKeys.of(session))
    if not hashed:
        sender.keys.hash = lambda blocks: blocks  # type: ignore[method-assign]
    zero, one = sender.take(len(q))
    return (zero ^ one).reshape(-1, 2)


@pytest.mark.parametrize("hashed", [True, False])
def test_corrections_do_not_show_delta(hashed: bool) -> None:
    """What a correction is made of, m_0 ⊕ m_1, is Δ itself without the hash, for every OT; with it, never the same."""
    delta, q, _ = deal_cots(2 * OTS_PER_KEY)
    differences = strings(delta, q, hashed)
    assert len(np.unique(differences, axis=0)) == (len(q) if hashed else 1)
    assert (differences == delta).all(1).any() == (not hashed)


@settings(max_examples=15, deadline=None)
@given(words=st.integers(0, 600), width=st.sampled_from([1, 2, 16, 17, 64, 65, 100, 128]))
def test_planes_are_the_bits_of_the_strings(words: int, width: int) -> None:
    """Bit e of OT 64·w + j is bit j of plane[e, w], of m_0, m_0 ⊕ m_1 and m_c; c as a plane."""
    request = OtRequest(1, 64 * words, width, "planes")
    assert count_cots([request], 0) == 0
    delta, q, t = deal_cots(count_cots([request], 1))
    own, peers = sessions()
    offered = take_offered(RandomOtSender(Supply(iter([q])), delta, HashKeys.of(own)), request)
    chosen = take_chosen(RandomOtReceiver(Supply(iter([t])), HashKeys.of(peers)), request)
    assert (chosen.first == offered.first ^ (offered.second & chosen.second)).all()
    plain = replace(request, width=2, form="words")
    strings = take_offered(RandomOtSender(Supply(iter([q])), delta, HashKeys.of(own)), plain)
    for e in range(width):
        zero, one = ((each[e // 64] >> np.uint64(e % 64)) & np.uint64(1) for each in (strings.first, strings.second))
        shifts = np.arange(64, dtype=np.uint64)
        assert ((zero.reshape(-1, 64) << shifts).sum(1) == offered.first[e]).all()
        assert (((zero ^ one).reshape(-1, 64) << shifts).sum(1) == offered.second[e]).all()


def test_impossible_requests_are_refused() -> None:
    for count, width, form in ((64, 129, "planes"), (63, 1, "planes"), (1, 3, "words")):
        with pytest.raises(ValueError, match="128 bits"):
            OtRequest(0, count, width, form)  # type: ignore[arg-type]
