"""Base OTs and IKNP: keys and COTs that fit, points that are refused, and masks that never cover two messages."""

import hmac
import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nacl import bindings

from support.ot_dealing import is_correlated, sessions
from veilmeans.crypto import prg
from veilmeans.crypto.ot import base_ot, iknp
from veilmeans.crypto.ot.blocks import choice_bits, make_delta
from veilmeans.crypto.ot.cot_supply import IknpReceiver, iknp_sender
from veilmeans.crypto.ot.ot_session import OtSession, join_nonces
from veilmeans.schemas.errors import RefusedError

Pairs = list[tuple[bytes, bytes]]


def base_keys(delta_bits: np.ndarray, nonce: bytes) -> tuple[Pairs, list[bytes]]:
    """The keys of base OTs, in which the COTs' sender chooses by the bits of Δ."""
    chooser, other = sessions(nonce=nonce)
    a_point = base_ot.sender_point(other)
    points = base_ot.receiver_points(chooser, delta_bits, a_point)
    return base_ot.sender_keys(other, points), base_ot.receiver_keys(chooser, delta_bits, a_point)


@settings(max_examples=10, deadline=None)
@given(choices=st.lists(st.integers(0, 1), min_size=1, max_size=8))
def test_the_receiver_has_the_chosen_key_and_not_the_other(choices: list[int]) -> None:
    pairs, keys = base_keys(np.array(choices, np.uint8), os.urandom(32))
    for c, pair, key in zip(choices, pairs, keys, strict=True):
        assert key == pair[c]
        assert key != pair[1 - c]


def test_base_keys_are_of_their_session() -> None:
    choices, seed = np.array([0, 1], np.uint8), os.urandom(32)
    points = [base_ot.sender_point(sessions(seed, nonce)[0]) for nonce in (b"a" * 32, b"b" * 32)]
    assert points[0] != points[1]
    chooser = [sessions(seed, nonce)[0] for nonce in (b"a" * 32, b"b" * 32)]
    assert base_ot.receiver_points(chooser[0], choices, points[0]) != base_ot.receiver_points(
        chooser[1], choices, points[0]
    )


SMALL_ORDER = bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05")
NEUTRAL = (1).to_bytes(32, "little")


@pytest.mark.parametrize("point", [NEUTRAL, SMALL_ORDER, bytes(32), b"\xff" * 32, b"short"])
def test_what_is_no_point_of_the_group_is_refused(point: bytes) -> None:
    session, _ = sessions()
    with pytest.raises(RefusedError, match="not a point"):
        base_ot.receiver_points(session, np.zeros(1, np.uint8), point)
    with pytest.raises(RefusedError, match="not a point"):
        base_ot.sender_keys(session, [point])


def test_the_senders_own_point_is_refused() -> None:
    """B = A makes the second key that of the neutral element."""
    session, _ = sessions()
    with pytest.raises(RefusedError, match="small order"):
        base_ot.sender_keys(session, [base_ot.sender_point(session)])


def test_the_group_is_ed25519() -> None:
    """2·G in the encoding of RFC 8032."""
    two = (2).to_bytes(32, "little")
    expected = "c9a3f86aae465f0e56513864510f3997561fa2c9e85ea21dc2292309f3cd6022"
    assert bindings.crypto_scalarmult_ed25519_base_noclamp(two).hex() == expected


@settings(max_examples=15, deadline=None)
@given(count=st.integers(1, 700))
def test_iknp_makes_cots(count: int) -> None:
    nonce, delta = os.urandom(32), make_delta(os.urandom(32))
    pairs, keys = base_keys(iknp.delta_bits(delta), nonce)
    sender, receiver = sessions(nonce=nonce)
    side = IknpReceiver(receiver, pairs, count)
    t = side.supply().take(count)
    q = iknp_sender(sender, keys, delta, side.messages, count).take(count)
    assert side.messages[0].shape == iknp.message_shape(count)
    assert is_correlated(delta, q, t)


def test_iknp_in_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veilmeans.crypto.ot.cot_supply.IKNP_BATCH", 128)
    nonce, delta = os.urandom(32), make_delta(os.urandom(32))
    pairs, keys = base_keys(iknp.delta_bits(delta), nonce)
    sender, receiver = sessions(nonce=nonce)
    side = IknpReceiver(receiver, pairs, 500)
    t = side.supply().take(500)
    q = iknp_sender(sender, keys, delta, side.messages, 500).take(500)
    assert len(side.messages) == 4
    assert is_correlated(delta, q, t)
    assert len(np.unique(q, axis=0)) == 500


def receiver_message(keys: Pairs, seed: bytes, session: OtSession) -> tuple[np.ndarray, np.ndarray]:
    """The choice bits of 64 COTs as one word, and the message."""
    own = OtSession(seed, session.nonce, session.sender, session.receiver, session.address)
    blocks, message = iknp.extend_receiver(own, "batch 0", keys, 64)
    return np.packbits(choice_bits(blocks), bitorder="little").view(np.uint64), message


def test_a_peer_that_starts_afresh_never_sees_old_masks_on_new_messages() -> None:
    """The attack: the same columns under two choice vectors give c ⊕ c'. It works within a nonce, and only there."""
    keys = [(os.urandom(32), os.urandom(32)) for _ in range(iknp.COLUMNS)]
    old, new = join_nonces([b"a" * 32, b"b" * 32]), join_nonces([b"a" * 32, b"c" * 32])
    first, message = receiver_message(keys, b"1" * 32, sessions(nonce=old)[0])
    second, same_nonce = receiver_message(keys, b"2" * 32, sessions(nonce=old)[0])
    assert (message ^ same_nonce == first ^ second).all()
    third, fresh_nonce = receiver_message(keys, b"2" * 32, sessions(nonce=new)[0])
    assert not (message ^ fresh_nonce == first ^ third).any()
    assert first != second
    assert second != third


def test_the_nonce_depends_on_every_contribution() -> None:
    assert join_nonces([b"a" * 32, b"b" * 32]) != join_nonces([b"a" * 32, b"c" * 32])
    assert join_nonces([b"a" * 32, b"b" * 32]) != join_nonces([b"b" * 32, b"a" * 32])
    with pytest.raises(ValueError, match="32 bytes"):
        join_nonces([b"a", b"b" * 32])


@pytest.mark.parametrize("alike", [False, True])
def test_two_senders_together_do_not_see_the_choice_bits(alike: bool) -> None:
    """The attack: senders with the same base keys and tweak have both columns of a u_i where their Δ differ, and so c.

    A receiver has the same choice bits with all senders: its messages must be under keys of each pair's own.
    """
    receiver = sessions()[1]
    pairs = [[(os.urandom(32), os.urandom(32)) for _ in range(iknp.COLUMNS)] for _ in range(1 if alike else 2)]
    choices, messages, columns = [], [], []
    for sender in range(2):
        session, keys = (receiver, pairs[0]) if alike else (replace(receiver, sender=2 + sender), pairs[sender])
        blocks, message = iknp.extend_receiver(session, "batch 0", keys, 64)
        choices.append(np.packbits(choice_bits(blocks), bitorder="little").view(np.uint64))
        messages.append(message[0])
        columns.append(np.empty(1, np.uint64))
        prg.fill(hmac.digest(keys[0][sender], session.public("batch 0 columns"), "sha256"), columns[-1])
    assert choices[0] == choices[1]
    assert (messages[0] == messages[1]) == alike
    assert (messages[0] ^ columns[0] ^ columns[1] == choices[0]) == alike


def test_choice_bits_depend_on_everything_but_the_sender() -> None:
    own = sessions()[1]
    variants = [
        own,
        replace(own, seed=os.urandom(32)),
        replace(own, nonce=os.urandom(32)),
        replace(own, receiver=3),
        own.at(replace(own.address, iteration=1)),
        own.at(replace(own.address, shard=1)),
        own.at(replace(own.address, run="other")),
    ]
    assert len({each.choices("batch 0") for each in variants}) == len(variants)
    assert own.choices("batch 1") != own.choices("batch 0")
    assert replace(own, sender=2).choices("batch 0") == own.choices("batch 0")
    assert len({each.receiver_public("code") for each in variants}) == len(variants) - 1
    assert replace(own, sender=2).receiver_public("code") == own.receiver_public("code")
