"""The exact messages of a triple store that the parties make themselves, from shapes alone. Nothing is made.

Set-up once; then for each place (run number, iteration, shard) the OTs' messages and corrections, the responses of its
matrix triples and, for each run number and shard once, Enc(U). Names of rounds are those of the store's report.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from veilmeans.crypto.correlations import MatMul, find_part, made_by_ot
from veilmeans.io.storage.triple_store import correction_name
from veilmeans.pipelines.planning.plan_schema import OfflineRound
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import ArraySpec, Spec, payload_size
from veilmeans.schemas.config import JobConfig
from veilmeans.transforms.offline import lattice_products
from veilmeans.transforms.offline.lattice_products import placed_triples
from veilmeans.transforms.offline.ot_places import OtPlace, stored_parts
from veilmeans.transforms.offline.ot_setup import OtSetup
from veilmeans.transforms.offline.traced_job import Needs, TracedJob

EqualPlaces = tuple[int, int, int]
"""A shard, an iteration, and the number of places in the store that are equal to it."""


@dataclass(frozen=True)
class StoreMessages:
    """The messages of making a store, by equal places; `places` is the number of all, `iterations` of a run's."""

    config: JobConfig
    traced: TracedJob
    iterations: int
    equal: tuple[EqualPlaces, ...]

    @property
    def setup(self) -> OtSetup:
        provider = "iknp" if self.config.provider == "iknp" else "ot"
        return OtSetup(self.config.required_triples.store, sum(count for *_, count in self.equal), provider)

    def rounds(self, party: int) -> tuple[OfflineRound, ...]:
        """The messages and bytes of one party, round by round."""
        found: dict[str, list[int]] = {}
        for name, sender, recipient, count, spec in self._messages():
            counts, size = found.setdefault(name, [0, 0, 0]), count * payload_size(spec)
            if sender == party:
                counts[0] += count
                counts[1] += size
            elif recipient == party:
                counts[2] += size
        return tuple(OfflineRound(name, *counts) for name, counts in found.items())

    def cots(self) -> int:
        """COTs that the places use up, both ways."""
        places = ((self._place(shard, iteration), count) for shard, iteration, count in self.equal)
        return sum(count * place.cots(chooser) for place, count in places for chooser in range(2))

    def _messages(self) -> Iterator[tuple[str, int, int, int, Spec]]:
        """Round, sender, recipient, number and arrays of equal messages."""
        setup = self.setup
        for name, spec in setup.message_specs().items():
            yield from ((name, sender, 1 - sender, 1, spec) for sender in range(2))
        for shard, iteration, count in self.equal:
            place = self._place(shard, iteration)
            for sender in range(2) if place.requests else ():
                for name, spec in place.message_specs(sender).items():
                    yield name, sender, 1 - sender, count, spec
            for name, at in (("operands", range(min(2, self.iterations))), ("responses", (iteration,))):
                for (round_name, *pair), spec in self._lattice(shard, at):
                    if round_name == name and (name == "responses" or iteration == 0):
                        yield name, *pair, count, spec

    def _place(self, shard: int, iteration: int) -> OtPlace:
        return OtPlace(self.setup, Address("", iteration, "", shard), self.traced.needs(shard, iteration))

    def _lattice(self, shard: int, iterations: Iterable[int]) -> Iterable[tuple[tuple[str, int, int], Spec]]:
        triples = placed_triples({each: self.traced.needs(shard, each) for each in iterations})
        return lattice_products.message_specs(triples).items()


def stored_spec(party: int, needs: Needs) -> Spec:
    """The arrays that a party stores for a place: all parts by OTs, and as an owner its share of matrix products."""
    return tuple(
        ArraySpec(correction_name(stage, need.label(name)), np.dtype(part.dtype).str, part.shape)
        for stage, stage_needs in needs.items()
        for need in stage_needs
        for name in _stored_names(party, need.kind)
        for part in [find_part(need.kind, name)]
    )


def _stored_names(party: int, kind: object) -> list[str]:
    if made_by_ot(kind):
        return stored_parts(party, kind)
    return ["w"] if isinstance(kind, MatMul) and kind.owner == party else []
