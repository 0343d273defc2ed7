"""Parties that mean different jobs: both end with exit code 4 and name the field, both values and the peer."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from support.bad_input import (
    Case,
    Change,
    Fields,
    RunCase,
    change_manifest,
    check_refusal,
    fit_store,
    job,
    rewritten,
    start_cases,
    with_ids,
)
from support.worlds import BOTH, COMMON, HALF, ROWS, World, two_companies

pytestmark = pytest.mark.processes


def differing(field: str, here: str, there: str, fields: Fields, change: Change | None = None, **others: Any) -> Case:
    """Shop means another job, and both name what differs."""

    def apply(world: World) -> None:
        if change is not None:
            change(world)
        fit_store("shop", fields)(world)

    expected = {"payco": (4, (field, here, there, "shop")), "shop": (4, (field, here, there, "payco"))}
    return Case(expected, {"shop": fields}, apply, kind="files", **others)


def different_ids(change: Change) -> Case:
    return Case(dict.fromkeys(BOTH, (4, ("ids", *BOTH))), change=change, kind="files")


OTHER_LAYOUT = job(
    layout="horizontal", rows={"payco": 5, "shop": ROWS}, features=2, id=None, columns=["visits", "spent"],
    normalise={"aggregate": True},
)  # fmt: skip
CASES: dict[str, Case] = {
    "clusters": differing("kmeans.clusters", "3", "4", job(clusters=4)),
    "tol": differing("kmeans.tol", "0.0", "0.5", job(tol=0.5)),
    "max_iter": differing(
        "kmeans.max_iter", "1", "2", job(max_iter=2), lambda world: change_manifest(world, "shop", iterations=9)
    ),
    "the policy": differing("kmeans.reveal.centroids", "payco, shop", "shop", job(reveal={"centroids": ["shop"]})),
    "the start": differing("kmeans.init.seed", "0", "5", job(init={"seed": 5})),
    "the layout": differing("kmeans.", "", "", OTHER_LAYOUT),
    "rows in a row shard": differing("beam.rows_per_shard", "120", "64", {"beam": {"rows_per_shard": 64}}),
    "values in a column shard": differing(
        "beam.values_per_column_shard", "262,144", "9", {"beam": {"values_per_column_shard": 9}}
    ),
    "rows": differing(
        "kmeans.rows", "200", "199", job(rows=ROWS - 1), rewritten(lambda table: table.slice(0, ROWS - 1), "shop")
    ),
    "normalisation": differing("kmeans.normalise.method", "minmax", "zscore", job(normalise={"method": "zscore"})),
    "an id at one party only": differing("kmeans.id", "set", "not set", job(id=None, columns=["visits", "spent"])),
    "ids in another order": different_ids(rewritten(with_ids(lambda ids: ids[::-1]), "shop")),
    "another id": different_ids(rewritten(with_ids(lambda ids: [7, *ids[1:]]), "shop")),
    "other column names": differing(
        "kmeans.columns", "amount, visits", "amount, calls", {},
        rewritten(lambda table: table.rename_columns(["amount", "calls"]), "shop"), world="horizontal",
    ),
    "columns in another order": differing(
        "kmeans.columns", "amount, visits", "visits, amount", job(columns=list(COMMON[::-1])), world="horizontal"
    ),
    "rows of a party": differing(
        "kmeans.rows", "120", "121", job(rows={"payco": HALF + 1, "shop": ROWS - HALF}), world="horizontal"
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, RunCase]]:
    root = tmp_path_factory.mktemp("cases")
    worlds = {layout: two_companies(root / layout, layout, max_iter=1) for layout in ("vertical", "horizontal")}
    with ThreadPoolExecutor(6) as pool:
        yield start_cases(pool, CASES, worlds, root)


@pytest.mark.parametrize("name", CASES)
def test_both_parties_name_what_differs(ended: dict[str, RunCase], name: str) -> None:
    world, ends = ended[name].result()
    for party, expected in CASES[name].expected.items():
        check_refusal(world, party, ends[party], expected)
        assert not world.run_folder(party).checkpoints.exists()
