"""The descriptions of K-means as Beam transforms: an iteration, and a prediction."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import apache_beam as beam

from veilmeans.io.storage.triple_store import Manifest
from veilmeans.transforms.kmeans.iteration import iterate, may_begin, predict_rows
from veilmeans.transforms.kmeans.party_state import PartyJob
from veilmeans.transforms.rounds.beam_executor import RunDescription


@dataclass
class LloydIteration(beam.PTransform):
    """Run `iterate`: the number of iterations done in, one more out; nothing where the run has stopped.

    `manifest` is of the triple store that the run has claimed: a side input, against which the store that a worker sees
    is checked.
    """

    job: PartyJob
    manifest: Manifest

    def __post_init__(self) -> None:
        super().__init__(f"Iteration {self.job.context.iteration + 1}")

    def expand(self, done: beam.PCollection[int]) -> beam.PCollection[int]:
        begun = done | "Begin" >> _begin(self.job, self.manifest, done.pipeline)
        describe = partial(iterate, self.job.steps, self.job.context.iteration == 0)
        finished = begun | "Iterate" >> RunDescription(self.job, describe, self.job.one_call)
        return finished | "Done" >> beam.Map(_next, self.job.context.iteration + 1).with_output_types(int)


@dataclass
class PredictRows(beam.PTransform):
    """Run `predict_rows`; the number of each row shard whose assignments are kept comes out."""

    job: PartyJob
    manifest: Manifest

    def expand(self, begin: beam.PCollection[int]) -> beam.PCollection[int]:
        begun = begin | "Begin" >> _begin(self.job, self.manifest, begin.pipeline)
        return begun | "Predict" >> RunDescription(self.job, partial(predict_rows, self.job.steps), self.job.one_call)


def _begin(job: PartyJob, manifest: Manifest, pipeline: beam.Pipeline) -> beam.PTransform:
    manifests = pipeline | f"Manifest {job.context.iteration}" >> beam.Create([manifest])
    return beam.ParDo(BeginIteration(job), beam.pvalue.AsSingleton(manifests))


def _next(_shard: int, done: int) -> int:
    return done


class BeginIteration(beam.DoFn):
    """Pass the number of iterations on, unless the run has stopped, if the triple store serves this iteration."""

    def __init__(self, job: PartyJob) -> None:
        self.job = job

    def setup(self) -> None:
        self.context = self.job.context.open()

    def process(self, done: int, manifest: Manifest) -> Iterator[int]:
        if may_begin(self.job, self.context, manifest):
            yield done
