"""Runs from data files as they are: categories, lists, gaps, sparse matrices; the result is plaintext Lloyd's."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.worlds import World, changed_config, make_world
from veilmeans.pipelines.session.agreed_terms import train_terms
from veilmeans.pipelines.session.kmeans_from_config import requested_engines
from veilmeans.pipelines.session.own_data import scan_data
from veilmeans.schemas.arrays import Real
from veilmeans.transforms.kmeans.plaintext_kmeans import lloyd

ROWS, CLUSTERS = 24, 3
RNG = np.random.default_rng(5)
KIND = np.arange(ROWS) % CLUSTERS
COLOURS = ["red", "green", "blue"]
COLOUR = [COLOURS[kind] for kind in KIND]
AMOUNT = KIND * 10.0 + RNG.normal(size=ROWS)
ITEMS = [[int(kind)] if i % 4 else [int(kind), 3] for i, kind in enumerate(KIND)]
ONE_HOT = (KIND[:, None] == np.arange(CLUSTERS)).astype(np.float64)
LISTS = np.array([[float(j in each) for j in range(4)] for each in ITEMS])
START = [0, 1, 5]
JOB = {
    "clusters": CLUSTERS,
    "max_iter": 2,
    "init": {"indices": START},
    "reveal": {"centroids": ["payco"], "columns": "all"},
}


def opened_centroids(world: World) -> pa.Table:
    return pq.read_table(json.loads(world.run_folder("payco").result.read_text())["centroids"])


def in_the_clear(rows: Real) -> Real:
    return lloyd(lambda: [rows], rows[START], 2)[-1].centroids


def scaled(values: Real, method: str) -> tuple[Real, float, float]:
    shift, width = (values.min(), np.ptp(values)) if method == "minmax" else (values.mean(), values.std())
    return (values - shift) / width, float(shift), float(width)


def test_a_table_beside_a_sparse_matrix(tmp_path: Path) -> None:
    """Vertical: payco has numbers with a gap, categories and lists; shop has svmlight text."""
    plain = pa.table({f"c{i}": np.zeros(ROWS) for i in range(8)})
    world = make_world(tmp_path, [plain, plain.select(["c0", "c1", "c2"])], {"layout": "vertical", **JOB})
    amount = np.where(np.arange(ROWS) == 7, np.delete(AMOUNT, 7).mean(), AMOUNT)
    gap = pa.array([None if i == 7 else value for i, value in enumerate(AMOUNT)])
    pq.write_table(pa.table({"colour": COLOUR, "amount": gap, "items": ITEMS}), world.data("payco"))
    text = "".join(f"+1 {kind + 1}:{2 * kind + 1}\n" for kind in KIND)
    (tmp_path / "shop" / "data.svm").write_text(text)
    encoded = {"categories": {"colour": COLOURS}, "multi_hot": {"items": 4}, "missing": "mean"}
    world = world.altered("payco", kmeans=encoded)
    world = world.altered("shop", kmeans={"data": str(tmp_path / "shop" / "data.svm")})
    world.train()
    table = opened_centroids(world)
    names = [*(f"colour={name}" for name in COLOURS), "amount", *(f"items={i}" for i in range(4))]
    assert table.column_names == ["cluster", *(f"payco.{name}" for name in names), *(f"shop.{i}" for i in range(3))]
    normalised, shift, width = scaled(amount, "minmax")
    expected = in_the_clear(np.hstack([ONE_HOT, normalised[:, None], LISTS, ONE_HOT]))
    expected = expected * [1, 1, 1, width, 1, 1, 1, 1, 1, 3, 5] + [0, 0, 0, shift, *[0] * 7]
    np.testing.assert_allclose(np.array([table[name] for name in table.column_names[1:]]).T, expected, atol=1e-3)


@pytest.mark.parametrize("method", ["minmax", "zscore"])
def test_categories_that_all_agree_on(tmp_path: Path, method: str) -> None:
    """Horizontal, with a joint scale: columns of 0 and 1 are not scaled."""
    plain = pa.table({f"c{i}": np.zeros(ROWS // 2) for i in range(4)})
    job = {"layout": "horizontal", "normalise": {"method": method, "aggregate": True}, **JOB}
    world = make_world(tmp_path, [plain, plain], {**job, "categories": {"colour": COLOURS}})
    table = pa.table({"colour": COLOUR, "amount": AMOUNT})
    for name, part in (("payco", table.slice(0, ROWS // 2)), ("shop", table.slice(ROWS // 2))):
        pq.write_table(part, world.data(name))
    world.train()
    table = opened_centroids(world)
    assert table.column_names == ["cluster", *(f"colour={name}" for name in COLOURS), "amount"]
    normalised, shift, width = scaled(AMOUNT, method)
    expected = in_the_clear(np.hstack([ONE_HOT, normalised[:, None]])) * [1, 1, 1, width] + [0, 0, 0, shift]
    np.testing.assert_allclose(np.array([table[name] for name in table.column_names[1:]]).T, expected, atol=1e-3)


def test_what_parties_agree_on_about_columns(tmp_path: Path) -> None:
    plain = pa.table({str(i): np.zeros(4) for i in range(4)})
    job = {"layout": "horizontal", "normalise": {"aggregate": True}, **JOB}
    shop = make_world(tmp_path, [plain, plain], job)["shop"]
    (tmp_path / "shop" / "data.svm").write_text("1 4:1\n" * 4)
    sparse = changed_config(shop, kmeans={"data": str(tmp_path / "shop" / "data.svm")})
    hot = pa.table({"c": ["x", "y", "z", "x"], "n": [1, 2, 3, 4]})
    pq.write_table(hot, tmp_path / "shop" / "hot.parquet")
    hot_job = {"data": str(tmp_path / "shop" / "hot.parquet"), "categories": {"c": ["x", "y", "z"]}}
    encoded = changed_config(shop, kmeans=hot_job)
    agreements = []
    for config in (shop, sparse, encoded):
        scan, engines = scan_data(config, None), requested_engines(config)
        agreed = train_terms(config, scan, engines, "")["payco"].agreed
        agreements.append([agreed[name] for name in ("kmeans.columns", "kmeans.kinds of columns", "kmeans.categories")])
    assert agreements[0][0] == agreements[1][0] == [["", 4]]
    assert [each[1] for each in agreements] == [[["number", 4]], [["matrix", 4]], [["0 or 1", 3], ["number", 1]]]
    assert agreements[2][0] == ["c=x", "c=y", "c=z", "n"]
    assert agreements[2][2] == {"c": ["x", "y", "z"]}
