"""The benchmark of alignments: its targets, and a refusal of figures of a wrong result."""

import pytest
from benchmarks.align import SIZES, Measured, our_figures

NAME = "10^6 × 10^6"


def test_a_million_ids_have_targets_for_time_and_traffic() -> None:
    slow = Measured(30.1, {"payco": 20.0, "shop": 22.0}, 60.0, 0.5, 500_000)
    figures = list(our_figures(NAME, SIZES[NAME], slow))
    assert [(each.value, each.unit, each.met) for each in figures] == [
        (30.1, "s", False),
        (60.0, "MB", True),
        (42.0, "s", None),
        (0.5, "GiB", None),
    ]


def test_a_wrong_number_of_common_ids_has_no_figures() -> None:
    wrong = Measured(1.0, {"payco": 1.0}, 1.0, 0.5, 499_999)
    with pytest.raises(RuntimeError, match="499,999 common ids were found of 500,000"):
        list(our_figures(NAME, SIZES[NAME], wrong))
