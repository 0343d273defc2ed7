"""The OPRF of one shard: both sides agree on common ids alone, and an attacker learns nothing more from what it has."""

import os

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from support.id_sets import id_hashes
from support.ot_dealing import deal_cots
from veilmeans.crypto.ot.blocks import make_delta, uniform_blocks
from veilmeans.crypto.ot.psi import okvs
from veilmeans.crypto.ot.psi.okvs import OkvsShape
from veilmeans.crypto.ot.psi.oprf import Oprf, share_of_zero
from veilmeans.crypto.ot.psi.vole import add_products, combine, multiples

POLYNOMIAL = (1 << 128) | 0x87


def product(left: int, right: int) -> int:
    """Multiply in GF(2^128), bit by bit."""
    total = 0
    for bit in range(128):
        if right >> bit & 1:
            total ^= left << bit
    for bit in range(255, 127, -1):
        if total >> bit & 1:
            total ^= POLYNOMIAL << (bit - 128)
    return total


def as_int(block: np.ndarray) -> int:
    return int(block[0]) | int(block[1]) << 64


def words(count: int) -> np.ndarray:
    return uniform_blocks(os.urandom(32), count)[:, 0].copy()


@settings(max_examples=30, deadline=None)
@given(bits=st.integers(1, 64), entries=st.integers(0, 20))
def test_cots_become_entries_of_a_vole(bits: int, entries: int) -> None:
    delta, q, t = deal_cots(entries * bits)
    zero, b = combine(q, bits)
    a, c = combine(t, bits)
    assert not zero.any()
    assert all(int(each) < 2**bits for each in a)
    for i in range(entries):
        assert as_int(c[i]) == product(int(a[i]), as_int(delta)) ^ as_int(b[i])


@settings(max_examples=30, deadline=None)
@given(factor=st.integers(0, 2**64 - 1))
def test_products_with_delta(factor: int) -> None:
    delta, out = make_delta(os.urandom(32)), uniform_blocks(os.urandom(32), 1)
    expected = as_int(out[0]) ^ product(as_int(delta), factor)
    add_products(multiples(delta), np.array([factor], np.uint64), out)
    assert as_int(out[0]) == expected


def outputs(
    leader: list[int], member: list[int], bits: int = 60, probes: list[int] | None = None
) -> dict[str, np.ndarray]:
    """Run one shard with dealt COTs; `probes`: ids for which a curious leader evaluates what it has."""
    oprf = Oprf(OkvsShape(len(leader)), bits, os.urandom(16))
    delta, q, t = deal_cots(oprf.shape.size * bits)
    (a, c), (_, b) = combine(t, bits), combine(q, bits)
    message = oprf.mask_store(id_hashes(leader), words(oprf.shape.size), a)
    return {
        "message": message,
        "leader": oprf.leader_outputs(c, id_hashes(leader)),
        "member": oprf.member_outputs(delta, b, message, id_hashes(member)),
        "probes": oprf.leader_outputs(c, id_hashes(probes or [])),
    }


@settings(max_examples=25, deadline=None)
@given(leader=st.sets(st.integers(0, 300)), member=st.sets(st.integers(0, 300)), bits=st.integers(40, 64))
def test_outputs_agree_on_common_ids_alone(leader: set[int], member: set[int], bits: int) -> None:
    one, other = sorted(leader), sorted(member)
    found = outputs(one, other, bits)
    by_output = dict(zip(found["leader"].tolist(), one, strict=True))
    assert {by_output[each] for each in found["member"].tolist() if each in by_output} == leader & member


def test_a_leader_cannot_look_up_ids_that_it_did_not_enter() -> None:
    """The dictionary attack of the peer: it has C and all keys, and evaluates every id of the member."""
    member = list(range(500, 1500))
    found = outputs(list(range(1000)), member, probes=member)
    hits = set(found["probes"].tolist()) & set(found["member"].tolist())
    assert len(hits) == 500
    assert hits == set(found["leader"].tolist()) & set(found["member"].tolist())


def test_the_leader_s_message_is_uniform_to_the_member() -> None:
    """The member tries every id of a dictionary: decoded, none has its own hash, whether the leader has it or not."""
    leader = list(range(2000))
    message = outputs(leader, [], bits=64)["message"]
    dictionary = id_hashes(range(4000))
    decoded = okvs.decode(OkvsShape(len(leader)), message, dictionary)
    assert not (decoded == dictionary[:, 3]).any()
    difference = np.unpackbits((decoded ^ dictionary[:, 3]).view(np.uint8).reshape(2, -1), axis=1).mean(axis=1)
    assert (abs(difference - 0.5) < 6 * 0.5 / np.sqrt(64 * 2000)).all()


def test_shares_of_zero_add_up_and_hide_who_lacks_an_id() -> None:
    keys = {pair: os.urandom(16) for pair in ((0, 1), (0, 2), (1, 2))}
    hashes = id_hashes(range(1000))
    shares = [share_of_zero([key for pair, key in keys.items() if i in pair], hashes) for i in range(3)]
    assert not (shares[0] ^ shares[1] ^ shares[2]).any()
    known = share_of_zero([keys[0, 1]], hashes), share_of_zero([keys[0, 2]], hashes)
    for seen in (shares[1] ^ known[0], shares[2] ^ known[1]):  # all that a leader can take off what one member sends
        assert abs(np.unpackbits(seen.view(np.uint8)).mean() - 0.5) < 6 * 0.5 / np.sqrt(64_000)
    assert not share_of_zero([], hashes[:0]).size
