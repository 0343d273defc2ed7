"""The descriptions of K-means as Beam transforms: an iteration, and a prediction."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import apache_beam as beam

from veilmeans.io.storage.triple_store import Manifest
from veilmeans.transforms.kmeans.iteration import iterate, may_begin, predict_rows
from veilmeans.transforms.kmeans.party_state import PartyJob
from veilmeans.transforms.rounds.beam_executor import RunDescription
from veilmeans.transforms.rounds.beam_serialisation import PlainDoFn, PlainParDo


@dataclass
class LloydIteration(beam.PTransform):
    """Run `iterate`: the number of iterations done in, one more out; nothing where the run has stopped.

    `manifest` is of the triple store that the run has claimed; the store that a worker sees is checked against it.
    """

    job: PartyJob
    manifest: Manifest

    def __post_init__(self) -> None:
        super().__init__(f"Iteration {self.job.context.iteration + 1}")

    def expand(self, done: beam.PCollection[int]) -> beam.PCollection[int]:
        begun = done | "Begin" >> PlainParDo(BeginIteration(self.job, self.manifest))
        describe = partial(iterate, self.job.steps, self.job.context.iteration == 0)
        finished = begun | "Iterate" >> RunDescription(self.job, describe, self.job.one_call)
        return finished | "Done" >> PlainParDo(Done(self.job.context.iteration + 1)).with_output_types(int)


@dataclass
class PredictRows(beam.PTransform):
    """Run `predict_rows`; the number of each row shard whose assignments are kept comes out."""

    job: PartyJob
    manifest: Manifest

    def expand(self, begin: beam.PCollection[int]) -> beam.PCollection[int]:
        begun = begin | "Begin" >> PlainParDo(BeginIteration(self.job, self.manifest))
        return begun | "Predict" >> RunDescription(self.job, partial(predict_rows, self.job.steps), self.job.one_call)


class Done(PlainDoFn):
    """Give the number of iterations done for each shard that is done."""

    def __init__(self, done: int) -> None:
        self.done = done

    def process(self, _shard: int) -> Iterator[int]:
        yield self.done


class BeginIteration(PlainDoFn):
    """Pass the number of iterations on, unless the run has stopped, if the triple store serves this iteration."""

    def __init__(self, job: PartyJob, manifest: Manifest) -> None:
        self.job, self.manifest = job, manifest

    def setup(self) -> None:
        self.context = self.job.context.open()

    def process(self, done: int) -> Iterator[int]:
        if may_begin(self.job, self.context, self.manifest):
            yield done
