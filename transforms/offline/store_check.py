"""The store of triples in a pipeline: its manifest is a side input, against which each shard is checked before a round.

Rounds then read the store by address, where they run. (A side input at every stage would cost 12 ms a round.)
"""

from collections.abc import Iterator
from dataclasses import dataclass

import apache_beam as beam

from veilmeans.io.storage.triple_store import Manifest, StoreRun
from veilmeans.schemas.errors import StorageError
from veilmeans.schemas.shard import Shard
from veilmeans.transforms.rounds.party_context import PartyContext


@dataclass
class CheckTriples(beam.PTransform):
    """Shards in, the same shards out; a store that is not the driver's, or lacks a shard's file, ends the run here."""

    context: PartyContext
    manifest: Manifest

    def expand(self, shards: beam.PCollection[tuple[int, Shard]]) -> beam.PCollection[tuple[int, Shard]]:
        manifest = beam.pvalue.AsSingleton(shards.pipeline | "Manifest" >> beam.Create([self.manifest]))
        return shards | beam.ParDo(_CheckShard(self.context), manifest).with_output_types(tuple[int, Shard])


class _CheckShard(beam.DoFn):
    def __init__(self, context: PartyContext) -> None:
        self.context = context

    def setup(self) -> None:
        self.claimed = self.context.open().triples

    def process(self, element: tuple[int, Shard], manifest: Manifest) -> Iterator[tuple[int, Shard]]:
        check_shard(self.claimed, manifest, self.context.iteration, element[0])
        yield element


def check_shard(claimed: StoreRun | None, manifest: Manifest, iteration: int, shard: int) -> None:
    """Whether the store that a worker sees is the one the job was planned with, and has this shard."""
    if claimed is None or claimed.store.manifest != manifest:
        raise StorageError(f"a worker does not see the triple store {manifest.store!r}: is `storage` shared with it?")
    if iteration >= manifest.iterations or not claimed.serves(iteration, shard):
        raise StorageError(f"the triple store {manifest.store!r} has nothing for iteration {iteration}, shard {shard}")
