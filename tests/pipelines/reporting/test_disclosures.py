"""The report's table of disclosures: everything that was opened or is public, to whom, and nothing else."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from support.report_page import disclosure_rows
from support.reported_run import ALL_RESULTS, HORIZONTAL, LABELS, VERTICAL, ReportedRun, make_run, write_page
from veilmeans.io.storage.run_report import RunReport
from veilmeans.schemas.kmeans_config import RevealConfig


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> ReportedRun:
    return write_page(make_run(tmp_path_factory.mktemp("run")))


def cluster_sizes(page: str) -> list[tuple[int, int]]:
    rows = re.findall(r'<th scope="row">cluster (\d)</th>.*?<td class="n">(\d)</td>', page)
    return [(int(number), int(count)) for number, count in rows]


def test_results_of_this_party_are_reported(run: ReportedRun) -> None:
    assert "31.4062" in run.text
    assert cluster_sizes(run.page) == list(enumerate(np.bincount(LABELS)))
    both = dict.fromkeys(("cluster", "centroids", "inertia"), "payco, shop")
    assert run.disclosures == {"the": "all", "one": "all", **both}


def test_masked_messages_are_listed(run: ReportedRun) -> None:
    assert "[c], to be opened" in run.text


@pytest.mark.parametrize("reveal", [{}, {name: ["shop"] for name in ALL_RESULTS}], ids=["to nobody", "to the peer"])
def test_results_of_a_peer_are_not_reported(tmp_path: Path, reveal: Mapping[str, Any]) -> None:
    run = write_page(make_run(tmp_path, {**VERTICAL, "reveal": reveal}))
    assert cluster_sizes(run.page) == []
    assert "31.4062" not in run.text
    assert run.disclosures.get("cluster") == ("shop" if reveal else None)


def test_nothing_is_opened_before_the_end(tmp_path: Path) -> None:
    run = write_page(make_run(tmp_path, finished=False))
    assert run.disclosures == {"the": "all", "one": "all"}


def test_sizes_are_not_counted_in_a_file_that_no_opening_wrote(tmp_path: Path) -> None:
    config = make_run(tmp_path, {**VERTICAL, "reveal": {}})
    pa.parquet.write_table(pa.table({"id": [1, 2], "cluster": [0, 1]}), config.run_folder.assignments)
    assert cluster_sizes(write_page(config).page) == []


def test_a_later_opening_is_listed_once_after_the_first(tmp_path: Path) -> None:
    config = make_run(tmp_path, {**VERTICAL, "reveal": {"centroids": ["shop"]}})
    later = RevealConfig(assignments=("shop",), centroids=("payco",), columns="all")
    report = RunReport(config.run_folder)
    for _ in range(2):
        report.add_opening(later.model_dump(mode="json"))
    rows = disclosure_rows(write_page(config).page)
    opened = [(row[0].split()[0], row[1]) for row in rows if "kmeans.reveal" in row[3]]
    assert opened == [("centroids", "shop"), ("cluster", "shop"), ("centroids", "payco")]


def test_statistics_and_public_keys_are_listed(tmp_path: Path) -> None:
    normalise = {"method": "zscore", "aggregate": True}
    run = write_page(make_run(tmp_path, {**HORIZONTAL, "normalise": normalise, "products": "he"}))
    assert run.disclosures["mean"] == "all"
    assert run.disclosures["a"] == "all"


def test_no_bit_is_opened_without_a_tolerance(tmp_path: Path) -> None:
    run = write_page(make_run(tmp_path, {**VERTICAL, "tol": 0}))
    assert "one" not in run.disclosures
    assert "no bit" in run.text


def test_only_the_stop_bit_is_reported_of_convergence(run: ReportedRun) -> None:
    bits = re.findall(r"<li[^>]*>(\d+)<b>([^<]*)</b></li>", run.page)
    assert bits == [("1", "continue"), ("2", "continue"), ("3", "continue"), ("4", "stop")]
