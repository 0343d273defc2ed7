"""The exact messages of a triple store that the parties make themselves, from shapes alone. Nothing is made.

Set-up once; then for each place (run number, iteration, shard) the OTs' messages and corrections, the responses of its
matrix triples and, for each run number and shard once, Enc(U). Names of rounds are those of the store's report.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import permutations

import numpy as np

from veilmeans.crypto.correlations import Kind, MatMul, find_part, made_by_ot
from veilmeans.crypto.ot.ot_arrays import OtRequest
from veilmeans.io.storage.triple_store import correction_name
from veilmeans.pipelines.planning.plan_schema import OfflinePlan, OfflineRound
from veilmeans.pipelines.session.kmeans_from_config import store_iterations
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import ArraySpec, Spec, payload_size
from veilmeans.schemas.config import JobConfig
from veilmeans.transforms.offline import lattice_products
from veilmeans.transforms.offline.lattice_products import placed_triples
from veilmeans.transforms.offline.ot_places import OtPlace, correction_rounds, stored_parts
from veilmeans.transforms.offline.ot_setup import OtSetup, Provider
from veilmeans.transforms.offline.traced_job import EqualPlaces, Needs

_BLOCK = 16  # bytes of a COT
Message = tuple[str, int, int, int, Spec]
"""Round, sender, recipient, number of equal messages, arrays."""


@dataclass(frozen=True)
class MadeStore:
    """A store that parties make. `equal`: its places, those with equal needs together."""

    config: JobConfig
    equal: tuple[EqualPlaces, ...]

    @cached_property
    def setup(self) -> OtSetup:
        provider: Provider = "iknp" if self.config.provider == "iknp" else "ot"
        return OtSetup(self.config.required_triples.store, sum(each.count for each in self.equal), provider)

    def planned(self, plan: OfflinePlan, party: int) -> OfflinePlan:
        """Put the messages of one party in place of a dealer's."""
        rounds = self.rounds(party)
        messages, received = (sum(getattr(each, name) for each in rounds) for name in ("messages", "bytes_received"))
        plan = replace(plan, messages=messages, bytes_received=received, provider=self.config.provider, made=rounds)
        making = self.making_bytes(party)
        return replace(plan, cots=self.cots(party), bytes_making=making, passes=1 + self.correction_rounds)

    def rounds(self, party: int) -> tuple[OfflineRound, ...]:
        """The messages and bytes of one party, round by round."""
        found: dict[str, list[int]] = {}
        for name, sender, recipient, count, spec in self._messages():
            counts, size = found.setdefault(name, [0, 0, 0]), count * payload_size(spec)
            if party == sender:
                counts[0] += count
                counts[1] += size
            if party == recipient:
                counts[2] += size
        return tuple(OfflineRound(name, *counts) for name, counts in found.items() if any(counts))

    def cots(self, party: int) -> int:
        """COTs that one party sends and receives in all places."""
        places = ((self._place(each), each.count) for each in self.equal)
        peers = self.parties - 1
        return sum(
            count * place.cots(chooser) * (peers if chooser == party else 1)
            for place, count in places
            for chooser in range(self.parties)
        )

    def making_bytes(self, party: int) -> int:
        """Bytes of the files between passes: base COTs of all places, both ways, and one party's sides of all OTs."""
        base = 2 * _BLOCK * self.setup.places * self.setup.main.base if self.setup.provider == "ot" else 0
        places = ((self._place(each), each.count) for each in self.equal)
        sides = sum(
            count * _side_bytes(party, each) * (self.parties - 1 if each.chooser == party else 1)
            for place, count in places
            for each in place.requests
        )
        return base * (self.parties - 1) + sides

    def stored(self, party: int, needs: Needs) -> Spec:
        """The arrays that a party stores for a place: all parts by OTs, and an owner's shares of matrix products."""
        return tuple(
            ArraySpec(correction_name(stage, need.label(name)), np.dtype(part.dtype).str, part.shape)
            for stage, stage_needs in needs.items()
            for need in stage_needs
            for name in _stored_names(party, need.kind)
            for part in [find_part(need.kind, name)]
        )

    def _messages(self) -> Iterator[Message]:
        pairs = list(permutations(range(self.parties), 2))
        for name, spec in self.setup.message_specs().items():
            yield from ((name, *pair, 1, spec) for pair in pairs)
        for each in self.equal:
            place = self._place(each)
            for pair in pairs if place.requests else ():
                yield from ((name, *pair, each.count, spec) for name, spec in place.message_specs(*pair))
            yield from self._lattice("responses", each, [each.iteration])
            if each.iteration == 0:
                yield from self._lattice("operands", each, range(min(2, store_iterations(self.config))))

    def _lattice(self, name: str, places: EqualPlaces, iterations: Iterable[int]) -> Iterator[Message]:
        """One round of the matrix triples that a shard has in these iterations."""
        triples = placed_triples({each: places.job.needs(places.shard, each) for each in iterations})
        for (round_name, sender, recipient), spec in lattice_products.message_specs(triples).items():
            if round_name == name:
                yield name, sender, recipient, places.count, spec

    def _place(self, places: EqualPlaces) -> OtPlace:
        address = Address("", places.iteration, "", places.shard)
        return OtPlace(self.setup, address, places.needs, self.correction_rounds)

    @property
    def parties(self) -> int:
        return len(self.config.parties)

    @cached_property
    def correction_rounds(self) -> int:
        return correction_rounds(each.needs for each in self.equal)


def _stored_names(party: int, kind: Kind) -> list[str]:
    if made_by_ot(kind):
        return stored_parts(party, kind)
    return ["w"] if isinstance(kind, MatMul) and kind.owner == party else []


def _side_bytes(party: int, request: OtRequest) -> int:
    """Bytes of one party's side of a request: m_c and c at the chooser, m_0 and m_1 at the other."""
    second = 1 if request.chooser == party else request.width
    if request.form == "planes":
        return request.count * (request.width + second) // 8
    return request.count * (8 * request.width + (1 if request.chooser == party else 8 * second))
