"""Shards of a private set intersection, two and more parties in memory: what is found, and what messages show."""

import os
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.id_sets import id_hashes
from support.ot_dealing import SMALL
from veilmeans.crypto.ot.blocks import uniform_blocks
from veilmeans.crypto.ot.psi import okvs
from veilmeans.crypto.ot.psi.oprf import id_tags
from veilmeans.schemas.errors import InputError, RefusedError
from veilmeans.schemas.party import Party
from veilmeans.transforms.alignment import alignment_shape
from veilmeans.transforms.alignment.alignment_shape import MOST_IDS, AlignmentShape
from veilmeans.transforms.alignment.psi_shards import Keys, PsiShard, shard_numbers
from veilmeans.transforms.offline.ot_setup import OtSetup

NAMES = ("a", "b", "c", "d")
SETUP = OtSetup("align-x", 1, main=SMALL)


def even_blocks(key: bytes) -> np.ndarray:
    """A sender's base COTs, whose lowest bit is 0."""
    return uniform_blocks(key, SMALL.base) & np.array([2**64 - 2, 2**64 - 1], np.uint64)


@dataclass
class World:
    """All parties' sides of one shard, with dealt base COTs, and every message that they sent."""

    sets: list[list[int]]
    nonce: bytes = field(default_factory=lambda: os.urandom(32))
    seeds: list[bytes] = field(default_factory=lambda: [os.urandom(32) for _ in NAMES])
    messages: dict[str, dict[int, tuple[np.ndarray, ...]]] = field(default_factory=dict)
    totals: tuple[int, ...] | None = None
    """The parties' numbers of ids in all shards, if this is one of several."""

    def __post_init__(self) -> None:
        count = len(self.sets)
        self.shape = AlignmentShape(self.totals or tuple(map(len, self.sets)))
        shared = {frozenset((i, j)): os.urandom(32) for i in range(count) for j in range(i)}
        self.hashes = [id_hashes(each, self.nonce) for each in self.sets]
        self.sides = []
        for i in range(count):
            state = {"seed": np.frombuffer(self.seeds[i], np.uint8), "nonce": np.frombuffer(self.nonce, np.uint8)}
            keys = Keys(state, {j: shared[frozenset((i, j))] for j in range(count) if j != i})
            self.sides.append(PsiShard("align-x", SETUP, self.shape, Party(i, NAMES[:count]), 0, keys, self.hashes[i]))

    def run(self) -> list[np.ndarray]:
        """Run all passes; the positions of the common ids of each party, in the agreed order."""
        leader = self.sides[self.shape.leader]
        members = {i: self.sides[i] for i in leader.members}
        choices = uniform_blocks(os.urandom(32), SMALL.base)[:, :1] & np.uint64(1)
        q = {i: even_blocks(os.urandom(32)) for i in members}
        deltas = {i: SETUP.delta(side.party, side.keys.state, leader.party.index) for i, side in members.items()}
        base_t = np.stack([q[i] ^ choices * deltas[i] for i in members])
        extended = {i: side.extend(q[i]) for i, side in members.items()}
        message, total = leader.mask(base_t, {i: sums for i, (_, sums) in extended.items()})
        self.leader_total = total
        programmed = {i: side.program(extended[i][0], message) for i, side in members.items()}
        common = leader.match(total, programmed)
        tags = {i: leader.tags(i, common) for i in members}
        found = {i: side.find_tags(*tags[i]) for i, side in members.items()} | {leader.party.index: common}
        self.messages = {"sums": {i: (sums,) for i, (_, sums) in extended.items()}, "mask": {0: (message,)}}
        self.messages |= {"program": {i: (store,) for i, store in programmed.items()}, "tags": dict(tags)}
        ordered = [side.ordered(found[i]) for i, side in enumerate(self.sides)]
        assert len({digest for _, digest in ordered}) == 1
        return [positions for positions, _ in ordered]

    def common(self) -> list[list[int]]:
        return [[self.sets[i][at] for at in positions] for i, positions in enumerate(self.run())]


ids = st.lists(st.integers(0, 60), unique=True, max_size=50)


@settings(max_examples=25, deadline=None)
@given(sets=st.lists(ids, min_size=2, max_size=4))
def test_all_parties_find_the_common_ids_in_one_order(sets: list[list[int]]) -> None:
    found = World(sets).common()
    assert set(found[0]) == set.intersection(*map(set, sets))
    assert all(each == found[0] for each in found)
    assert len(found[0]) == len(set(found[0]))


def test_a_retry_sends_the_same_bytes_and_another_job_others() -> None:
    sets = [list(range(40)), list(range(20, 70))]
    nonce, seeds = os.urandom(32), [os.urandom(32) for _ in NAMES]
    world, other = World(sets, nonce, seeds), World(sets)
    base = even_blocks(b"x" * 32)
    one, again, different = world.sides[1].extend(base), world.sides[1].extend(base), other.sides[1].extend(base)
    assert all((left == right).all() for left, right in zip(one, again, strict=True))
    assert (one[1] != different[1]).any()
    message = np.arange(world.shape.store(0).size, dtype=np.uint64)
    assert (world.sides[1].program(one[0], message) == world.sides[1].program(one[0], message)).all()
    assert (id_hashes([7], world.nonce) != id_hashes([7], other.nonce)).all()


def test_no_key_or_mask_is_used_in_two_shards_or_jobs() -> None:
    """An OPRF's hash, the extension's randomness and free entries differ by shard, by member and by job."""
    sets = [list(range(40)), list(range(20, 70)), list(range(10, 60))]
    world, other = World(sets), World(sets)
    leaders = [world.sides[0], replace(world.sides[0], shard=1), other.sides[0]]
    members = [world.sides[1], world.sides[2], replace(world.sides[1], shard=1), other.sides[1]]
    hash_keys = {side.oprf(member).hash_key for side in leaders for member in (1, 2)}
    assert len(hash_keys) == 6
    base = even_blocks(b"x" * 32)
    assert len({side.extend(base)[1].tobytes() for side in members}) == len(members)
    message = np.zeros(world.shape.store(0).size, np.uint64)
    b = np.zeros((world.shape.store(0).size, 2), np.uint64)
    assert len({side.program(b, message).tobytes() for side in members}) == len(members)
    assert (
        len({world.sides[i].keys.shared(j, label) for i, j in ((0, 1), (0, 2), (1, 2)) for label in ("zero", "tags")})
        == 6
    )


def test_a_reader_of_all_messages_with_a_dictionary_learns_nothing() -> None:
    """A third party has every message and the nonce, hence the key of ids, and tries each id of a dictionary.

    It looks for ids by the leader's store, by the members' stores, by sums of all of them, and by tags.
    """
    world = World([list(range(400)), list(range(200, 700)), list(range(100, 650))])
    world.run()
    dictionary = id_hashes(range(1000), world.nonce)
    shape, bits = world.shape.store(world.shape.leader), np.uint64(2**world.shape.bits - 1)
    (message,) = world.messages["mask"][0]
    decoded = [okvs.decode(shape, message, dictionary)]
    decoded += [okvs.decode(world.shape.store(i), *store, dictionary) for i, store in world.messages["program"].items()]
    for part in (*decoded, decoded[1] ^ decoded[2], decoded[0] ^ decoded[1] ^ decoded[2]):
        assert not (part & bits == dictionary[:, 3] & bits).any()
        assert (part != 0).all()
        ones = np.unpackbits((part & bits).view(np.uint8)).sum() / (len(part) * world.shape.bits)
        assert abs(ones - 0.5) < 6 * 0.5 / np.sqrt(len(part) * world.shape.bits)
    for low, _ in world.messages["tags"].values():
        for key in (b"\0" * 16, world.nonce[:16], world.sides[0].keys.of_job[:16]):
            assert not set(low.tolist()) & set(id_tags(key, dictionary)[0].tolist())
    shared = world.sides[0].keys.shared(1, "tags")  # with the pairwise key it would succeed
    assert set(world.messages["tags"][1][0].tolist()) <= set(id_tags(shared, dictionary)[0].tolist())


def test_a_leader_cannot_find_which_member_lacks_an_id() -> None:
    """Of three parties: the leader takes off all that it knows, for ids that one member, the other, or both have."""
    world = World([list(range(300)), list(range(100, 1000)), [*range(200), *range(1000, 2000)]])
    leader = world.sides[0]
    world.run()
    assert world.shape.leader == 0
    for member, store in world.messages["program"].items():
        decoded = okvs.decode(world.shape.store(member), *store, leader.hashes)
        for part in (slice(0, 100), slice(100, 200), slice(200, 300)):
            ones = np.unpackbits(decoded[part].view(np.uint8)).mean()
            assert abs(ones - 0.5) < 6 * 0.5 / np.sqrt(6400)


def shapes_of_messages(world: World) -> list[tuple[int, ...]]:
    """The shapes of all messages but the tags, of which there are as many as common ids."""
    world.run()
    sent = [arrays for name, each in world.messages.items() if name != "tags" for arrays in each.values()]
    return [array.shape for arrays in sent for array in arrays]


def test_messages_have_the_same_shapes_whatever_the_sets_have_in_common() -> None:
    first, second = (World([list(range(50)), list(other)]) for other in (range(50), range(1000, 1050)))
    assert shapes_of_messages(first) == shapes_of_messages(second)


def test_an_empty_shard_sends_as_much_as_a_full_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 500 and 700 ids in eight shards: none, some, and as many as a shard has room for."""
    monkeypatch.setattr(alignment_shape, "_LEADER_IDS", 64)
    totals = (500, 700)
    shape = AlignmentShape(totals)
    assert shape.shards == 8
    room = [list(range(shape.most_ids(party))) for party in range(2)]
    worlds = [World(sets, totals=totals) for sets in ([[], []], [[1, 2], [2]], room)]
    sizes = [shapes_of_messages(world) for world in worlds]
    assert sizes[0] == sizes[1] == sizes[2]
    with pytest.raises(RefusedError, match="more ids than it can"):
        World([[*room[0], -1], []], totals=totals)


def test_ids_that_are_not_common_look_uniform_to_both_parties() -> None:
    """Each party takes off all that it knows from what it received, for those of its ids that the other lacks.

    Counted are bits, bytes and repetitions. For common ids the leader finds 0 in the same way: the attempt can succeed.
    """
    world = World([list(range(2_000)), list(range(1_000, 4_000))])
    common = set(world.run()[0].tolist())
    leader, member = world.sides
    (store,), (mask,) = world.messages["program"][1], world.messages["mask"][0]
    left = world.leader_total ^ okvs.decode(world.shape.store(1), store, leader.hashes)
    assert not left[sorted(common)].any()
    seen_by_leader = left[[i for i in range(2_000) if i not in common]]
    cut = np.uint64(2**world.shape.bits - 1)
    masked = okvs.decode(world.shape.store(0), mask, member.hashes) ^ (member.hashes[:, 3] & cut)
    for seen, bits in ((seen_by_leader, 64), (masked[:1_000], world.shape.bits), (masked[1_000:], world.shape.bits)):
        assert len(np.unique(seen)) == len(seen)
        octets = seen.view(np.uint8).reshape(-1, 8)[:, : bits // 8]
        ones = np.unpackbits(octets).mean()
        assert abs(ones - 0.5) < 6 * 0.5 / np.sqrt(8 * octets.size)
        expected = octets.size / 256
        squares = ((np.bincount(octets.ravel(), minlength=256) - expected) ** 2 / expected).sum()
        assert abs(squares - 255) < 8 * np.sqrt(2 * 255)  # χ² with 255 degrees of freedom


def test_tags_of_ids_that_a_member_does_not_have_are_refused() -> None:
    world = World([[1, 2], [2, 3, 4]])
    tags = world.sides[0].tags(1, np.array([0]))
    with pytest.raises(RefusedError, match="does not have"):
        world.sides[1].find_tags(*tags)
    with pytest.raises(RefusedError, match="shape"):
        world.sides[1].find_tags(tags[0], tags[1][:0])
    with pytest.raises(RefusedError, match="shape"):
        world.sides[1].program(np.zeros((1, 2), np.uint64), np.zeros(3, np.uint64))


@pytest.mark.parametrize(("count", "shards"), [(100_000, 1), (1_000_000, 8), (10_000_000, 77)])
def test_shards_have_room_for_all_their_ids(count: int, shards: int) -> None:
    shape = AlignmentShape((count, count + 1))
    assert (shape.leader, shape.shards) == (0, shards)
    assert shape.most_ids(0) < 1.03 * count / shards + 1
    if count <= 1_000_000:
        filled = np.bincount(shard_numbers(uniform_blocks(b"s" * 32, 2 * count).reshape(-1, 4), shards))
        assert filled.max() <= shape.most_ids(0)
    assert shape.bits == 40 + (count + 1).bit_length()


def test_the_smallest_party_leads_and_too_many_ids_are_refused() -> None:
    assert AlignmentShape((10**6, 10**4, 10**4)).leader == 1
    assert AlignmentShape((10**6, 10**4)).shards == 2
    assert AlignmentShape((MOST_IDS, MOST_IDS)).bits == 64
    with pytest.raises(InputError, match="too many"):
        AlignmentShape((MOST_IDS, MOST_IDS + 1))
