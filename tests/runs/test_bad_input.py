"""Bad input to `veilmeans train` that a party finds by itself: exit code, a sentence that names it, and no value."""

import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.bad_input import (
    FULL_DISK,
    SECRET_WORD,
    Case,
    Change,
    Fields,
    RunCase,
    check_refusal,
    full_disk,
    job,
    rewritten,
    start_cases,
    with_value,
)
from support.commands import assert_all_succeeded
from support.worlds import DEALER, ROWS, World, two_companies
from veilmeans.crypto.certificates import make_identity

pytestmark = pytest.mark.processes
NOW = datetime.now(UTC)


def alone(code: int, *named: str, change: Change | None = None, fields: Fields | None = None, **others: Any) -> Case:
    """Start payco by itself: it must find the mistake before it sends anything."""
    return Case({"payco": (code, named)}, {"payco": fields or {}}, change, **others)


# What is done to a world.
def as_text(table: pa.Table) -> pa.Table:
    return table.set_column(1, "amount", table.column("amount").cast(pa.string()))


def replaced(name: str, content: bytes) -> Change:
    return lambda world: (world.folder / name).write_bytes(content)


def as_csv(world: World) -> None:
    """Write a CSV file with a word among its numbers."""
    rows = pq.read_table(world.data("payco")).to_pylist()
    lines = [f"{row['id']},{row['amount']},{row['age']}" for row in rows]
    lines[150] = f"{1150},{SECRET_WORD},7"
    (world.folder / "payco/data.csv").write_text("\n".join(["id,amount,age", *lines]) + "\n")


def expired(file: str, name: str) -> Change:
    return replaced(file, make_identity(name, 2, NOW - timedelta(days=30)).certificate)


def chmod(name: str, mode: int) -> Change:
    return lambda world: (world.folder / name).chmod(mode)


def used_up(world: World) -> None:
    world["payco"].store_folder.claim(0).write_text(json.dumps({"run": "earlier", "binding": "of other data"}))


def without_store(world: World) -> None:
    world["payco"].store_folder.manifest.unlink()


def with_age(value: float | None) -> Callable[[pa.Table], pa.Table]:
    return with_value("age", 7, value)


DATA: dict[str, Case] = {
    "no data file": alone(3, "{folder}/none.parquet", fields=job(data="none.parquet")),
    "no file for a glob": alone(3, "{folder}/none-*.csv", fields=job(data="none-*.csv")),
    "a folder as data": alone(3, "payco", "folder", fields=job(data="payco")),
    "an unknown format": alone(3, "payco.key", "format", fields=job(data="payco/payco.key")),
    "garbage as data": alone(3, "{data}", change=replaced("payco/data.parquet", os.urandom(5000))),
    "truncated data": alone(3, "{data}", change=lambda world: os.truncate(world.data("payco"), 1000)),
    "no rows": alone(3, "{data}", "no rows", change=rewritten(lambda table: table.slice(0, 0))),
    "text": alone(3, "{data}", "'amount'", "string", change=rewritten(as_text)),
    "a word in a CSV file": alone(3, "data.csv", "'amount'", change=as_csv, fields=job(data="payco/data.csv")),
    "NaN": alone(3, "{data}", "row 8", "'age'", "finite", change=rewritten(with_age(float("nan")))),
    "infinity": alone(3, "{data}", "row 8", "'age'", "finite", change=rewritten(with_age(float("inf")))),
    "null": alone(3, "{data}", "row 8", "'age'", "no value", change=rewritten(with_age(None))),
    "a value beyond the bound": alone(
        3, "{data}", "row ", "kmeans.normalise.bound", fields=job(normalise={"method": "none", "bound": 1})
    ),
    "a value beyond the bound of zscore": alone(
        3, "{data}", "row ", "kmeans.normalise.bound", fields=job(normalise={"method": "zscore", "bound": 0.5})
    ),
    "a value beyond its range": alone(
        3,
        "{data}",
        "row ",
        "'amount'",
        "kmeans.normalise.ranges",
        fields=job(normalise={"ranges": {"amount": [0, 1], "age": [-99, 99]}}),
    ),
    "too few rows": alone(3, "{data}", "199", "kmeans.rows", "200", change=rewritten(lambda table: table.slice(1))),
    "too many columns": alone(
        3,
        "{data}",
        "amount, age, more",
        "kmeans.features",
        change=rewritten(lambda table: table.append_column("more", pa.array(np.arange(float(ROWS))))),
    ),
    "no such column": alone(3, "{data}", "'height'", "id, amount, age", fields=job(columns=["amount", "height"])),
    "no such id": alone(3, "{data}", "'number'", fields=job(id="number", columns=["amount", "age"])),
    "a missing id": alone(
        3,
        "{data}",
        "row 1",
        "'id'",
        change=rewritten(lambda table: table.set_column(0, "id", pa.array([None, *range(1, ROWS)]))),
    ),
}
CONFIGURATION: dict[str, Case] = {
    "no range for a column": alone(
        2, "kmeans.normalise.ranges", "'age'", fields=job(normalise={"ranges": {"amount": [0, 1]}})
    ),
    "k > n": alone(2, "payco.yaml", "clusters", "201", "200", fields=job(clusters=201)),
    "a start beyond n": alone(2, "payco.yaml", "init.indices", "200", fields=job(init={"indices": [0, 1, 200]})),
    "a start of too few rows": alone(2, "init.indices", "2", "3", fields=job(init={"indices": [0, 1]})),
    "an unknown field": alone(2, "payco.yaml", "kmeans.clutsers", fields=job(clutsers=3)),
    "an unknown party in the policy": alone(
        2, "kmeans.reveal.centroids", "'bank'", fields=job(reveal={"centroids": ["bank"]})
    ),
    "no job": alone(2, "payco", "`kmeans:`", fields={"kmeans": None}),
    "no store described": alone(2, "payco", "`triples:`", fields={"triples": None}),
    "the dealer": Case({DEALER: (2, (DEALER, "`veilmeans offline`"))}),
}
STORAGE: dict[str, Case] = {
    "no store": alone(8, "{store}", "`veilmeans offline`", change=without_store),
    "a store of another job": alone(8, "'store'", "veilmeans offline", fields=job(clusters=4)),
    "too few runs in the store": alone(8, "'store'", "1 runs", "0 left", change=used_up),
    "too few iterations in the store": alone(8, "'store'", "1 iterations", "3", fields=job(max_iter=3)),
    "no seed": alone(2, "{folder}/payco/payco.seed", change=lambda world: (world.folder / "payco/payco.seed").unlink()),
    "a key that others may read": alone(2, "payco.key", "0644", "chmod 600", change=chmod("payco/payco.key", 0o644)),
    "our certificate expired": alone(7, "{folder}/payco/payco.crt", change=expired("payco/payco.crt", "payco")),
    "a peer's certificate expired": alone(7, "{folder}/shop/shop.crt", change=expired("shop/shop.crt", "shop")),
    "a dead peer": alone(5, "shop", "127.0.0.1:", "1 s", fields={"exchange": {"timeout_s": 1}}),
    "a dead peer with files": alone(
        5, "test/0/handshake/0", "shop", "1 s", fields={"exchange": {"timeout_s": 1, "kind": "files"}}
    ),
    "a full disk under encoded data": alone(8, "payco/storage/prepared", *FULL_DISK, strike=full_disk(".rows.arrow")),
    "other data under the same run": alone(
        4, "'test'", "new run id", change=rewritten(with_value("age", 0, 1.25)), world="trained"
    ),
    "another policy under the same run": alone(
        4, "'test'", "kmeans.reveal.columns", "all", "own", fields=job(reveal={"columns": "all"}), world="trained"
    ),
    "another start under the same run": alone(
        4, "'test'", "kmeans.init.seed", "5", "0", fields=job(init={"seed": 5}), world="trained"
    ),
}
CASES = {**DATA, **CONFIGURATION, **STORAGE}


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, RunCase]]:
    root = tmp_path_factory.mktemp("cases")
    world = two_companies(root / "new", "vertical", max_iter=1)
    trained = world.copied(root / "trained", exchange={"kind": "files"})
    assert_all_succeeded(trained.train_as_processes())
    with ThreadPoolExecutor(4) as pool:
        yield start_cases(pool, CASES, {"vertical": world, "trained": trained}, root)


@pytest.mark.parametrize("name", CASES)
def test_a_party_finds_the_mistake_before_it_sends_anything(ended: dict[str, RunCase], name: str) -> None:
    world, ends = ended[name].result()
    for party, expected in CASES[name].expected.items():
        check_refusal(world, party, ends[party], expected)
        assert not (world["shop"].storage_folder.inbox / "test").exists()
