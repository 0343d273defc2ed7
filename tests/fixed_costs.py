"""A machine of known pace, so that plans in tests are quick and alike."""

import pytest

from veilmeans.pipelines import plan_kmeans, settle
from veilmeans.pipelines.costs import Costs, Link
from veilmeans.pipelines.pace import Pace

PACE = Pace(message=1e-3, byte=2e-9, local=2e-8, barrier=0.02, pipeline=0.1)
SECONDS = {
    "multiply": 1.8e-6,
    "raw": 25e-6,
    "blind": 60e-6,
    "mask": 280e-6,
    "decrypt": 230e-6,
    "convert": 0.6e-6,
    "dense": 0.25e-9,
    "sparse": 1e-9,
    "word": 1.5e-9,
}


def fix_costs(patch: pytest.MonkeyPatch) -> None:
    """Nothing is measured."""
    patch.setattr(settle, "calibrate", _costs)
    patch.setattr(plan_kmeans, "measure_pace", lambda *_: PACE)


def _costs(cipher: object, folder: object, link: Link | None = None, keep: bool = True) -> Costs:
    del cipher, folder, keep
    link = link or Link()
    return Costs(**SECONDS, rate=link.rate, round_trip=link.round_trip)
