"""Private set intersection in shards: passes of the leader and of each other party (member), by messages of a shard.

  member    0. extend COTs; send the trees' sums                     →
  leader    0. extend COTs; send M = P ⊕ A, the same to all          ←      (`crypto.ot.psi.oprf`)
  member    1. evaluate the OPRF on its own ids; send T              →
  leader    1. find the ids for which all T add up to its own share
               of zero; send a tag of each under a pairwise key      ←
  member    2. find its own rows of these tags

All parties then have the rows of the common ids of the shard, in the order of the ids' hashes. A pass ends before the
next one begins, and no message of a pass needs another of the same pass of the same party, so none waits for ever.
Everything secret is a function of the seed of this alignment, the session's nonce and an address: a retry sends the
same bytes. A pass finds what the one before it has kept in files of the shard.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from veilmeans.crypto import prg
from veilmeans.crypto.ot.blocks import Blocks
from veilmeans.crypto.ot.cot_supply import SilentSender, Supply, silent_receiver, silent_rounds
from veilmeans.crypto.ot.ot_session import KEY_SIZE, OtSession
from veilmeans.crypto.ot.psi import okvs
from veilmeans.crypto.ot.psi.id_hash import IdHashes
from veilmeans.crypto.ot.psi.oprf import Oprf, id_tags, share_of_zero
from veilmeans.crypto.ot.psi.vole import combine
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Array, Arrays
from veilmeans.schemas.errors import RefusedError
from veilmeans.schemas.party import Party
from veilmeans.transforms.alignment.alignment_shape import AlignmentShape
from veilmeans.transforms.offline.ot_setup import OtSetup, of_peer

_ENTRIES = 1 << 14
"""Entries of a VOLE whose COTs are in memory at once."""


@dataclass(frozen=True)
class Keys:
    """A party's secrets of an alignment: its state after the set-up, and keys that it shares with each peer."""

    state: Arrays
    pairwise: dict[int, bytes]

    def shared(self, peer: int, label: str) -> bytes:
        """An AES-128 key that only this party and a peer have, in this session."""
        return prg.derive(self.pairwise[peer] + self.state["nonce"].tobytes(), label)[:KEY_SIZE]

    @property
    def of_job(self) -> bytes:
        """The key under which all parties hash ids."""
        return prg.derive(self.state["nonce"].tobytes(), "ids")


@dataclass(frozen=True)
class PsiShard:
    """One shard of an alignment at one party: `hashes` are those of its own ids there."""

    run: str
    setup: OtSetup
    shape: AlignmentShape
    party: Party
    shard: int
    keys: Keys
    hashes: IdHashes

    def __post_init__(self) -> None:
        if len(self.hashes) > self.shape.most_ids(self.party.index):
            raise RefusedError(f"shard {self.shard:,} has more ids than it can: choose a new align.name, then rerun")

    @property
    def leader(self) -> int:
        return self.shape.leader

    @property
    def members(self) -> tuple[int, ...]:
        return tuple(i for i in range(self.party.count) if i != self.leader)

    def session(self, peer: int) -> OtSession:
        """The direction of OTs from a member to the leader; of the member `peer`, at the leader."""
        sending = self.party.index != self.leader
        where = Address(self.run, 0, "psi-cots", self.shard)
        return self.setup.session(self.party, self.keys.state, peer, sending, where)

    def oprf(self, peer: int) -> Oprf:
        key = self.session(peer).public("oprf")[:KEY_SIZE]
        return Oprf(self.shape.store(self.leader), self.shape.bits, key)

    @cached_property
    def zero(self) -> Array:
        """This party's share of zero for each of its ids."""
        return share_of_zero([self.keys.shared(peer, "zero") for peer in self.party.others], self.hashes)

    # a member's passes
    def extend(self, base_q: Blocks) -> tuple[Blocks, Array]:
        """Pass 0: B of the VOLE, and the trees' sums for the leader."""
        delta = self.setup.delta(self.party, self.keys.state, self.leader)
        sender = SilentSender(self.setup.main, self.session(self.leader), delta, base_q, self.shape.cots)
        b = self._combined(sender.supply())[1]
        return b, np.concatenate([message.reshape(-1, 2) for message in sender.messages])

    def program(self, b: Blocks, received: Array) -> Array:
        """Pass 1: T, from the leader's message."""
        _check(self.party.names[self.leader], received, (self.shape.store(self.leader).size,))
        delta = self.setup.delta(self.party, self.keys.state, self.leader)
        outputs = self.oprf(self.leader).member_outputs(delta, b, received, self.hashes)
        store = self.shape.store(self.party.index)
        return okvs.encode(store, self.hashes, outputs ^ self.zero, self._uniform("programmed", store.size))

    def find_tags(self, low: Array, high: Array) -> Array:
        """Pass 2: the positions of the ids of these tags among this party's own; refuse tags of other ids."""
        name = self.party.names[self.leader]
        _check(name, low, (len(low),))
        _check(name, high, (len(low),), np.uint32)
        own_low, own_high = id_tags(self.keys.shared(self.leader, "tags"), self.hashes)
        order = np.lexsort((own_high, own_low))
        at = _find_pairs(own_low[order], own_high[order], low, high)
        if (at < 0).any() or len(np.unique(at)) != len(at):
            raise RefusedError(f"{name} named a common id that {self.party.name} does not have")
        found: Array = order[at]
        return found

    # the leader's passes
    def mask(self, base_t: Blocks, sums: dict[int, Array]) -> tuple[Array, Array]:
        """Pass 0: M for all members, and the sum of all members' OPRFs of this party's ids and its share of zero."""
        message, total = None, self.zero.copy()
        for member in self.members:
            a, c = self._combined(self._receive_cots(member, of_peer(self.party, base_t, member), sums[member]))
            oprf = self.oprf(member)
            masked = oprf.mask_store(self.hashes, self._uniform("store", oprf.shape.size), a)
            if message is not None and not np.array_equal(message, masked):
                raise RefusedError(f"{self.party.names[member]} sent sums of trees that do not follow the protocol")
            message = masked
            total ^= oprf.leader_outputs(c, self.hashes)
        if message is None:
            raise ValueError("an alignment has at least two parties")
        return message, total

    def match(self, total: Array, programmed: dict[int, Array]) -> Array:
        """Pass 1: the positions of the common ids among this party's own."""
        total = total.copy()
        for member, store in programmed.items():
            shape = self.shape.store(member)
            _check(self.party.names[member], store, (shape.size,))
            total ^= okvs.decode(shape, store, self.hashes)
        return np.flatnonzero(total == 0)

    def tags(self, member: int, common: Array) -> tuple[Array, Array]:
        """Tags of the common ids for a member, in the order of the tags."""
        low, high = id_tags(self.keys.shared(member, "tags"), self.hashes[common])
        order = np.lexsort((high, low))
        return low[order], high[order]

    # all parties
    def ordered(self, common: Array) -> tuple[Array, bytes]:
        """The common ids' positions in the agreed order, and a digest of the ids in this order."""
        chosen = self.hashes[common]
        order = np.lexsort((chosen[:, 1], chosen[:, 0]))
        return common[order], hashlib.sha256(chosen[order].tobytes()).digest()

    def _receive_cots(self, member: int, base: Blocks, sums: Array) -> Supply:
        main, cots = self.setup.main, self.shape.cots
        shapes = [main.message_shape(count) for count in silent_rounds(main, cots)]
        ends = np.cumsum([shape[0] * shape[1] for shape in shapes])
        _check(self.party.names[member], sums, (int(ends[-1]), 2))
        parts = np.split(sums, ends[:-1])
        messages = [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
        return silent_receiver(main, self.session(member), base, messages, cots)

    def _combined(self, supply: Supply) -> tuple[Array, Blocks]:
        """All entries of the VOLE, from some COTs at a time."""
        size, bits = self.shape.store(self.leader).size, self.shape.bits
        low, blocks = np.empty(size, np.uint64), np.empty((size, 2), np.uint64)
        for start in range(0, size, _ENTRIES):
            part = slice(start, min(start + _ENTRIES, size))
            low[part], blocks[part] = combine(supply.take((part.stop - start) * bits), bits)
        return low, blocks

    def _uniform(self, label: str, count: int) -> Array:
        """Secret words of this party for entries of a store that its ids do not determine."""
        where = Address(self.run, 0, "psi-free", self.shard)
        seed = prg.derive(self.keys.state["seed"].tobytes(), f"psi {self.keys.state['nonce'].tobytes().hex()}")
        return prg.uniform(seed, where, label, (count,))


def shard_numbers(hashes: IdHashes, shards: int) -> Array:
    """The shard of each id, by the upper half of the second word of its hash."""
    return (((hashes[:, 1] >> np.uint64(32)) * np.uint64(shards)) >> np.uint64(32)).astype(np.int64)


def _find_pairs(own_low: Array, own_high: Array, low: Array, high: Array) -> Array:
    """The place of each pair (low, high) among sorted pairs; −1 where there is none."""
    at = np.searchsorted(own_low, low)
    while True:  # pairs with the same low part are all but impossible
        inside = at < len(own_low)
        same = np.zeros(len(at), np.bool_)
        same[inside] = own_low[at[inside]] == low[inside]
        equal = same.copy()
        equal[same] = own_high[at[same]] == high[same]
        if (equal == same).all():
            return np.where(equal, at, -1)
        at = at + (same & ~equal)


def _check(peer: str, array: Array | None, shape: tuple[int, ...], dtype: type = np.uint64) -> None:
    """Refuse an array that is not of the shape that the sizes of all sets determine."""
    if array is None or array.shape != shape or array.dtype != dtype:
        raise RefusedError(f"{peer} sent a message of the alignment that has not the shape that the sizes require")
