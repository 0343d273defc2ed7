"""Which engine computes each party's products: as configured, or as the planner finds with all parties' costs."""

from collections.abc import Mapping

from veilmeans.pipelines.jobs import asked_engines
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.terms import Terms
from veilmeans.transforms.engines import Chosen


def settle_engines(config: JobConfig, said: Mapping[str, Terms], heard: Mapping[str, Terms]) -> Chosen:
    """What all parties and the dealer find alike, from what each of them has said."""
    del said, heard
    return asked_engines(config)
