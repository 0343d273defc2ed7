"""The public shape of an alignment: everything here follows from how many ids each party has.

Ids are spread over shards by a keyed hash. No party learns how many of another's ids are in a shard: whatever depends
on that has room for the most that can be there. With n ids in s shards, of a mean μ = n/s each (Bernstein)

  Pr[a shard has more than μ + t] ≤ exp(−t² / (2·(μ + t/3))) ≤ 2^-40 / s      for t = L/3 + √(L²/9 + 2·μ·L)

where L = ln(2^40·s). Computed in integers, so that all parties have the same numbers.
"""

from dataclasses import dataclass
from math import isqrt

from veilmeans.crypto.ot.psi.okvs import OkvsShape
from veilmeans.schemas.errors import InputError

_LEADER_IDS, _MEMBER_IDS = 1 << 17, 1 << 19
"""Ids of the leader, and of another party, that a shard has on average at most."""
_STATISTICAL = 40
MOST_IDS = (1 << 24) - 1
"""Ids that all parties but the leader may have together: for more, ℓ = 64 bits would be too few."""


@dataclass(frozen=True)
class AlignmentShape:
    """The shards of an alignment, by the numbers of ids of all parties in their order."""

    ids: tuple[int, ...]

    def __post_init__(self) -> None:
        others = sum(self.ids) - self.ids[self.leader]
        if others > MOST_IDS:
            raise InputError(
                f"{others:,} ids at all parties but the smallest are too many: an alignment is for {MOST_IDS:,} at most"
            )

    @property
    def leader(self) -> int:
        """The party that receives the OPRF: the one with the fewest ids, since most of the work goes with them."""
        return min(range(len(self.ids)), key=lambda party: self.ids[party])

    @property
    def shards(self) -> int:
        """The number of shards."""
        return max(1, -(-self.ids[self.leader] // _LEADER_IDS), -(-max(self.ids) // _MEMBER_IDS))

    @property
    def bits(self) -> int:
        """ℓ: with a chance of 2^-40 at most any id of a member agrees by accident with the leader's store."""
        return _STATISTICAL + (sum(self.ids) - self.ids[self.leader]).bit_length()

    def store(self, party: int) -> OkvsShape:
        """The key-value store of a party in each shard."""
        return OkvsShape(self.most_ids(party))

    def most_ids(self, party: int) -> int:
        """Ids of a party that a shard can have."""
        if self.shards == 1:
            return self.ids[party]
        mean = -(-self.ids[party] // self.shards)
        bound = -(-(_STATISTICAL + self.shards.bit_length()) * 694 // 1000)  # ≥ L, since ln 2 < 0.694
        return min(self.ids[party], mean + bound // 3 + 1 + isqrt(bound * bound // 9 + 1 + 2 * mean * bound) + 1)

    @property
    def cots(self) -> int:
        """COTs of one shard, from each member to the leader."""
        return self.store(self.leader).size * self.bits
