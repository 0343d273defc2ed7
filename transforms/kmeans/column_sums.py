"""Secure column sums: every party learns Σ_rows of each party's columns and one inner product, and nothing else.

1. Shr of all columns                                  (transforms.share)
2. ⟨z⟩ = ⟨x·y⟩ of the two product columns, row by row   (transforms.multiply)
3. each party adds its shares over the rows, and over the shards with a Beam combiner
4. Rec of the sums, the only values opened              (transforms.reveal)
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import apache_beam as beam
import numpy as np

from veilmeans.crypto import ring
from veilmeans.io.sources.inputs import read_shard
from veilmeans.io.storage.triple_store import Manifest
from veilmeans.schemas.arrays import Arrays
from veilmeans.schemas.party import Party
from veilmeans.schemas.shard import Shard
from veilmeans.transforms.offline.store_check import CheckTriples
from veilmeans.transforms.primitives.multiply import multiply
from veilmeans.transforms.primitives.share_and_open import OPEN, SHARE
from veilmeans.transforms.rounds.beam_executor import RunProtocol
from veilmeans.transforms.rounds.executor import Tallies, run_bare
from veilmeans.transforms.rounds.party_context import PartyContext
from veilmeans.transforms.rounds.protocol import Protocol, require
from veilmeans.transforms.rounds.stage_metrics import count_stage

OPENING = OPEN.named("sums-opening")


def product_protocol(left: int, right: int) -> Protocol:
    """Share all columns, then append the product of columns `left` and `right` as one more."""
    product = multiply("left", "right", "product").after(partial(_factors, left, right)).then(_append)
    return (SHARE + product).named("sums")


def _factors(left: int, right: int, party: Party, state: Arrays) -> Arrays:
    del party
    x = require(state, "x")
    return {"x": x, "left": x[:, left : left + 1].copy(), "right": x[:, right : right + 1].copy()}


def _append(party: Party, state: Arrays) -> Arrays:
    del party
    return {"x": np.concatenate([require(state, "x"), require(state, "product")], axis=1)}


@dataclass
class ReadShards(beam.PTransform):
    """Shard numbers in, this party's columns of them out."""

    file: Path

    def expand(self, numbers: beam.PCollection[int]) -> beam.PCollection[tuple[int, Shard]]:
        return numbers | beam.Map(_read, self.file).with_output_types(tuple[int, Shard])


def _read(shard: int, file: Path) -> tuple[int, Shard]:
    return shard, Shard(arrays={"x": read_shard(file, shard)})


@dataclass
class SumRows(beam.PTransform):
    """Shares of rows in, one share of the column sums out (mod 2^64, tree reduction)."""

    def expand(self, shards: beam.PCollection[tuple[int, Shard]]) -> beam.PCollection[Shard]:
        return shards | beam.MapTuple(_sum_shard).with_output_types(Shard) | beam.CombineGlobally(_add_up)


def _sum_shard(shard: int, state: Shard) -> Shard:
    del shard
    return Shard(arrays={"x": ring.column_sums(state.arrays["x"])})


def _add_up(parts: Iterable[Shard]) -> Shard:
    """Σ of partial sums; of none, the empty sum, which adds to anything."""
    total = np.zeros(1, ring.DTYPE)
    for part in parts:
        total = total + part.arrays["x"]
    return Shard(arrays={"x": total})


class OpenSums(beam.DoFn):
    """One element: all rounds of the opening in one call, on the bare executor."""

    def __init__(self, context: PartyContext) -> None:
        self.context = context

    def process(self, element: Shard) -> Iterator[Shard]:
        tallies: Tallies = {}
        opened = run_bare(OPENING, self.context.open(), {0: element.arrays}, tallies)
        for stage, tally in tallies.items():
            count_stage(stage, tally)
        yield Shard(arrays=dict(opened[0]))


@dataclass
class ColumnSums(beam.PTransform):
    """Shard numbers in; one element out: the sums of all parties' columns, then the inner product."""

    context: PartyContext
    manifest: Manifest
    file: Path
    left: int
    right: int

    def expand(self, numbers: beam.PCollection[int]) -> beam.PCollection[Shard]:
        return (
            numbers
            | ReadShards(self.file)
            | CheckTriples(self.context, self.manifest)
            | RunProtocol(product_protocol(self.left, self.right), self.context)
            | SumRows()
            | beam.ParDo(OpenSums(self.context)).with_output_types(Shard)
        )
