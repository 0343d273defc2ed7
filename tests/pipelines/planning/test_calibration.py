"""The calibration: costs are measured once for a machine, and measured again if the file is of another."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.fixed_values import COSTS, SECONDS
from veilmeans.crypto.he.product_parameters import SchemeParameters
from veilmeans.io.exchange.link_shaping import Link
from veilmeans.pipelines.planning.calibration import calibrate

PARAMETERS = SchemeParameters("okamoto-uchiyama", 960)


def never_measure(parameters: SchemeParameters) -> dict[str, float]:
    raise AssertionError(f"{parameters} were measured again")


def fixed_seconds(parameters: SchemeParameters) -> dict[str, float]:
    assert parameters == PARAMETERS
    return SECONDS


def test_a_calibration_is_kept_without_the_link(tmp_path: Path) -> None:
    file = tmp_path / "costs.json"
    first = calibrate(PARAMETERS, file)
    assert calibrate(PARAMETERS, file, measure=never_measure) == first
    slow = calibrate(PARAMETERS, file, Link(1e6, 0.1), measure=never_measure)
    assert slow == replace(first, rate=1e6, round_trip=0.1)


def test_nothing_is_written_if_nothing_may_be_kept(tmp_path: Path) -> None:
    assert calibrate(PARAMETERS, tmp_path / "costs.json", keep=False, measure=fixed_seconds) == COSTS
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: "not JSON",
        lambda _: "[]",
        lambda stored: json.dumps({**stored, "seconds": {**stored["seconds"], "word": "quick"}}),
        lambda stored: json.dumps({**stored, "seconds": {**stored["seconds"], "word": -1}}),
        lambda stored: json.dumps({**stored, "seconds": None}),
        lambda stored: json.dumps({**stored, "machine": {**stored["machine"], "version": "0.0"}}),
        lambda stored: json.dumps({**stored, "machine": {**stored["machine"], "processors": 999}}),
        lambda stored: json.dumps({**stored, "machine": {**stored["machine"], "processor": "another"}}),
    ],
)
def test_a_damaged_or_foreign_calibration_is_measured_again(damage: Callable[[Any], str], tmp_path: Path) -> None:
    file = tmp_path / "costs.json"
    first = calibrate(PARAMETERS, file, measure=fixed_seconds)
    content = file.read_text()
    file.write_text(damage(json.loads(content)))
    assert calibrate(PARAMETERS, file, measure=fixed_seconds) == first
    assert file.read_text() == content
