"""The demo, as `make demo` runs it, with fewer transactions; and its synthetic data."""

import json
from pathlib import Path

import numpy as np
import pytest

from support.report_page import check_page, footer
from veilmeans.io.storage.run_report import RunReport, total_count
from veilmeans.pipelines.local.demo import FEATURES, run_demo
from veilmeans.pipelines.local.demo_data import (
    KINDS,
    distances,
    farthest,
    jaccard,
    make_transactions,
    outliers_alone,
    scaled,
)
from veilmeans.schemas.config import JobConfig, load_config
from veilmeans.schemas.run_folder import StorageFolder
from veilmeans.transforms.kmeans.plaintext_kmeans import lloyd, nearest


@pytest.mark.processes
def test_the_demo_finds_the_fraud_and_the_clusters_of_plaintext_lloyd(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_demo(tmp_path / "demo", rows=600, exchange="gateway")
    output = capsys.readouterr().out
    assert "600 transactions × 42 features (payco 18, shop 24)" in output
    assert "yes, 100.00% of the rows" in output
    assert "yes, 6 rows" in output
    for name in FEATURES:
        folder = StorageFolder(tmp_path / "demo" / name / "storage").run("demo")
        result = json.loads(folder.result.read_text())
        assert {"assignments", "centroids", "inertia", "iterations", "outliers"} <= result.keys()
        assert f"{name}'s report: {folder.html_report}" in output.replace("\n", "")
        check_report(load_config(tmp_path / "demo" / name / "config.yaml"), tmp_path)


def check_report(config: JobConfig, folder: Path) -> None:
    """Check the HTML report that the processes of a run have written."""
    page, numbers = config.run_folder.html_report.read_text(), RunReport(config.run_folder).content
    check_page(page)
    assert str(folder) not in page
    assert "making triples" in page
    assert f"<li>{numbers['iterations'][-1]['done']}<b>" in page
    assert footer(page)[:2] == [f"{len(numbers['stages'])}", f"{total_count(numbers['stages'], 'messages'):,}"]
    peer = next(name for name in FEATURES if name != config.party)
    values = (folder / "demo" / peer / "data.csv").read_text().split("\n")[1].split(",")[1:]
    assert not [value for value in values if value in page]


def test_neither_company_sees_the_fraud_alone() -> None:
    made = make_transactions(4000, FEATURES, seed=3)
    assert 10 < made.fraud.sum() < 100
    count = int(made.fraud.sum())
    for table in made.tables.values():
        assert jaccard(outliers_alone(table, count, KINDS, seed=3), made.fraud) < 0.1
    rows = np.hstack([scaled(table) for table in made.tables.values()])
    start = rows[[int(np.argmax(np.argsort(rows[:, 0]) == i)) for i in range(KINDS)]]
    centroids = lloyd(lambda: [rows], start, 20)[-1].centroids
    assert jaccard(farthest(distances(rows, nearest(rows, centroids), centroids), count), made.fraud) > 0.4


def test_the_same_seed_makes_the_same_transactions() -> None:
    first, second, other = (make_transactions(50, FEATURES, seed) for seed in (1, 1, 2))
    for name in FEATURES:
        assert first.tables[name].equals(second.tables[name])
        assert not first.tables[name].equals(other.tables[name])
        assert first.tables[name].num_columns == FEATURES[name] + 1
