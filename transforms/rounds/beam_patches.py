"""Changes to Beam's internals, each with its reason, what it saves, and the versions it was measured with.

All of them save time only: a run without them gives the same bytes. Measured with Beam 2.77 on two cores, two parties
on DirectRunner, a stage for each round. Check them when setup.py allows another version of Beam.
"""

from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.worker.statesampler import StateSampler

_SAMPLING_MS = 5


def sample_often() -> None:
    """Shorten the sleep of Beam's state sampler, for all pipelines of this process.

    The sampler sleeps up to 200 ms, and a stage waits for its last sleep: a tenth of the time of a run.
    """
    StateSampler.__init__.__defaults__ = (_SAMPLING_MS,)


class CachedOptions(PipelineOptions):
    """Pipeline options that keep their views.

    Beam asks for views of the options some twenty times a stage and parses all flags each time. Views share their
    values, so keeping them changes nothing but the time: 18 ms become 5 for each round of a protocol.
    """

    def view_as(self, cls: type[PipelineOptions]) -> PipelineOptions:
        views = self.__dict__.setdefault("_views", {})
        if cls not in views:
            views[cls] = super().view_as(cls)
        return views[cls]
