"""Every kind of bad input to `veilmeans train`: one sentence that names it and helps, its exit code, and no value."""

import errno
import json
import os
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
import pyarrow.parquet
import pytest

from support.fault_injection import parts_of, raw_client, send_raw
from support.train_world import (
    BOTH,
    COMMON,
    DEALER,
    HALF,
    ROWS,
    Ended,
    Strike,
    World,
    changed_config,
    make_world,
    sentences,
    tells_values,
)
from veilmeans.crypto.certificates import make_identity
from veilmeans.io.exchange.connections import load_identity
from veilmeans.io.exchange.exchange import Outgoing
from veilmeans.pipelines.session.kmeans_from_config import store_requirements
from veilmeans.schemas.address import Address
from veilmeans.schemas.message import Header, MessageKey

NOW = datetime.now(UTC)
Change = Callable[[World], object]
Fields = Mapping[str, Any]
Expected = tuple[int, Sequence[str]]
"""Exit code, and what the sentence says; "{data}" and the like are put in."""


@dataclass(frozen=True)
class Case:
    """What is wrong, and how each party that is started must end."""

    expected: Mapping[str, Expected]
    fields: Mapping[str, Fields] = field(default_factory=dict)
    change: Change | None = None
    strike: Strike | None = None
    layout: str = "vertical"
    trained: bool = False
    kind: str = "gateway"


def alone(code: int, *said: str, change: Change | None = None, fields: Fields | None = None, **others: Any) -> Case:
    """Payco is started by itself and finds out before it says anything."""
    return Case({"payco": (code, said)}, {"payco": fields or {}}, change, **others)


def job(**fields: Any) -> Fields:
    return {"kmeans": fields}


# What is done to a world.
def rewritten(change: Callable[[pa.Table], pa.Table], party: str = "payco") -> Change:
    """The party's data file with another table."""

    def apply(world: World) -> None:
        file = world.data(party)
        pa.parquet.write_table(change(pa.parquet.read_table(file)), file)

    return apply


def with_value(column: str, row: int, value: float | None) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        values = table.column(column).to_pylist()
        values[row] = value
        return table.set_column(table.schema.get_field_index(column), column, pa.array(values, pa.float64()))

    return change


def as_text(table: pa.Table) -> pa.Table:
    return table.set_column(1, "amount", table.column("amount").cast(pa.string()))


def with_ids(ids: Callable[[list[int]], Sequence[int]]) -> Callable[[pa.Table], pa.Table]:
    return lambda table: table.set_column(0, "id", pa.array(ids(table.column("id").to_pylist())))


def replaced(name: str, content: bytes) -> Change:
    return lambda world: (world.folder / name).write_bytes(content)


def as_csv(world: World) -> None:
    """A CSV file with a word among its numbers."""
    table = pa.parquet.read_table(world.data("payco")).to_pylist()
    lines = [f"{row['id']},{row['amount']},{row['age']}" for row in table]
    lines[150] = f"{1150},secret-word,7"
    (world.folder / "payco/data.csv").write_text("\n".join(["id,amount,age", *lines]) + "\n")


def out_of_date(file: str, name: str) -> Change:
    return replaced(file, make_identity(name, 2, NOW - timedelta(days=30)).certificate)


def chmod(name: str, mode: int) -> Change:
    return lambda world: (world.folder / name).chmod(mode)


def used_up(world: World) -> None:
    claims = world.configs["payco"].store_folder / "claims"
    (claims / "0.json").write_text(json.dumps({"run": "earlier", "binding": "of other data"}))


def without_store(world: World) -> None:
    (world.configs["payco"].store_folder / "manifest.json").unlink()


def refitted(party: str, fields: Fields) -> Change:
    """The party's store says that it was made for the changed job: so the job differs at the handshake only."""

    def apply(world: World) -> None:
        file = world.configs[party].store_folder / "manifest.json"
        plan = store_requirements(changed_config(world.configs[party], fields)).digest()
        file.write_text(json.dumps({**json.loads(file.read_text()), "plan": plan}))

    return apply


def then(*changes: Change) -> Change:
    def apply(world: World) -> None:
        for change in changes:
            change(world)

    return apply


FULL = "is full: free some space and start again; nothing is lost"


def full_disk(what: str, number: int = 1) -> Strike:
    return Strike(what, number, "os.rename", errno.ENOSPC)


ALONE: dict[str, Case] = {
    "no data file": alone(3, "the data file {folder}/none.parquet does not exist", fields=job(data="none.parquet")),
    "no file for a glob": alone(3, "no file matches {folder}/none-*.csv", fields=job(data="none-*.csv")),
    "a folder as data": alone(3, "payco is a folder: name a file", fields=job(data="payco")),
    "an unknown format": alone(3, "payco.key has an unknown format", fields=job(data="payco/payco.key")),
    "garbage as data": alone(
        3, "the data file {data} cannot be read", change=replaced("payco/data.parquet", os.urandom(5000))
    ),
    "truncated data": alone(
        3, "the data file {data} cannot be read", change=lambda w: os.truncate(w.data("payco"), 1000)
    ),
    "no rows": alone(3, "{data} has no rows", change=rewritten(lambda table: table.slice(0, 0))),
    "text": alone(
        3, "{data}, column 'amount' holds string, and numbers are needed: correct it", change=rewritten(as_text)
    ),
    "a word in a CSV file": alone(
        3, "data.csv, column 'amount' holds string", "correct it", change=as_csv, fields=job(data="payco/data.csv")
    ),
    "NaN": alone(
        3, "{data}, row 8, column 'age': no finite number", change=rewritten(with_value("age", 7, float("nan")))
    ),
    "infinity": alone(
        3, "{data}, row 8, column 'age': no finite number", change=rewritten(with_value("age", 7, float("inf")))
    ),
    "null": alone(3, "{data}, row 8, column 'age': no value", change=rewritten(with_value("age", 7, None))),
    "a value beyond the bound": alone(
        3,
        "{data}, row ",
        "the normalised value is ",
        "raise kmeans.normalise.bound",
        fields=job(normalise={"method": "none", "bound": 1}),
    ),
    "a value beyond the bound of zscore": alone(
        3,
        "{data}, row ",
        "raise kmeans.normalise.bound",
        fields=job(normalise={"method": "zscore", "bound": 0.5}),
    ),
    "a value beyond its range": alone(
        3,
        "{data}, row ",
        "column 'amount': the normalised value is ",
        "give wider kmeans.normalise.ranges",
        fields=job(normalise={"ranges": {"amount": [0, 1], "age": [-99, 99]}}),
    ),
    "no range for a column": alone(
        2,
        "kmeans.normalise.ranges has nothing for the column 'age'",
        fields=job(normalise={"ranges": {"amount": [0, 1]}}),
    ),
    "too few rows": alone(
        3, "{data} of payco has 199 rows, and kmeans.rows is 200", change=rewritten(lambda table: table.slice(1))
    ),
    "too many columns": alone(
        3,
        "{data} of payco has 3 columns (amount, age, more), and kmeans.features is 2",
        change=rewritten(lambda table: table.append_column("more", pa.array(np.arange(float(ROWS))))),
    ),
    "no such column": alone(
        3, "{data} has no column 'height'; it has id, amount, age", fields=job(columns=["amount", "height"])
    ),
    "no such id": alone(3, "{data} has no column 'number'; it has", fields=job(id="number", columns=["amount", "age"])),
    "a missing id": alone(
        3,
        "{data}, row 1, column 'id': no id",
        change=rewritten(lambda table: table.set_column(0, "id", pa.array([None, *range(1, ROWS)]))),
    ),
    "k > n": alone(2, "payco.yaml: kmeans", "clusters: 201 clusters of 200 rows", fields=job(clusters=201)),
    "a start beyond n": alone(
        2,
        "payco.yaml: kmeans",
        "init.indices: row 200 of 200; they count from 0",
        fields=job(init={"indices": [0, 1, 200]}),
    ),
    "a start of too few rows": alone(2, "init.indices: 2 rows for 3 clusters", fields=job(init={"indices": [0, 1]})),
    "an unknown field": alone(2, "payco.yaml: kmeans.clutsers: ", fields=job(clutsers=3)),
    "a stranger in the policy": alone(
        2, "kmeans.reveal.centroids: 'bank' is none of the parties", fields=job(reveal={"centroids": ["bank"]})
    ),
    "no job": alone(2, "payco has no K-means job: add `kmeans:`", fields={"kmeans": None}),
    "no store described": alone(2, "payco describes no store of triples: add `triples:`", fields={"triples": None}),
    "the dealer": Case({DEALER: (2, ("notary is the dealer of this run: start it with `veilmeans offline`",))}),
    "no store": alone(
        8, "there is no complete triple store in {store}: run `veilmeans offline` first", change=without_store
    ),
    "a store of another job": alone(
        8, "the store 'store' was made for another job or other shapes", "veilmeans offline", fields=job(clusters=4)
    ),
    "too few triples: runs": alone(
        8, "the store 'store' serves 1 runs and has 0 left, 1 needed: make a new store", change=used_up
    ),
    "too few triples: iterations": alone(
        8, "the store 'store' serves 1 iterations a run, and the job may need 3: 2 more", fields=job(max_iter=3)
    ),
    "no seed": alone(
        2,
        "the secret file {folder}/payco/payco.seed cannot be read",
        change=lambda w: (w.folder / "payco/payco.seed").unlink(),
    ),
    "a key that others may read": alone(
        2, "payco.key has mode 0644: run chmod 600", change=chmod("payco/payco.key", 0o644)
    ),
    "our certificate expired": alone(
        7,
        "the certificate of payco ({folder}/payco/payco.crt) expired on",
        change=out_of_date("payco/payco.crt", "payco"),
    ),
    "a peer's certificate expired": alone(
        7, "the certificate of shop ({folder}/shop/shop.crt) expired on", change=out_of_date("shop/shop.crt", "shop")
    ),
    "a dead peer": alone(
        5, "the gateway of shop at 127.0.0.1:", "did not answer within 1 s", fields={"exchange": {"timeout_s": 1}}
    ),
    "a dead peer with files": alone(
        5,
        "no message test/0/handshake/0 came from shop within 1 s: is its pipeline running",
        fields={"exchange": {"timeout_s": 1, "kind": "files"}},
    ),
    "a full disk under prepared data": alone(8, "payco/storage/prepared", FULL, strike=full_disk(".rows.arrow")),
    "a full disk under the statistics": alone(8, "payco/storage/prepared", FULL, strike=full_disk("scans/")),
    "other data under the same run": alone(
        4,
        "run 'test' was begun before on other terms (the data or the job have changed since): choose a new run id",
        change=rewritten(with_value("age", 0, 1.25)),
        trained=True,
    ),
    "another policy under the same run": alone(
        4,
        "was begun before on other terms (kmeans.reveal.columns is all here and own at the start of this run)",
        fields=job(reveal={"columns": "all"}),
        trained=True,
    ),
    "another start under the same run": alone(
        4,
        "(kmeans.init.seed is 5 here and 0 at the start of this run): choose a new",
        fields=job(init={"seed": 5}),
        trained=True,
    ),
}


def differing(what: str, here: str, there: str, fields: Fields, change: Change | None = None, **others: Any) -> Case:
    """Shop means another job, and both say what differs."""
    agree = "agree on one value, then start both again"
    return Case(
        {
            "payco": (4, (f"{what} is {here} here and {there} at shop", agree)),
            "shop": (4, (f"{what} is {there} here and {here} at payco", agree)),
        },
        {"shop": fields},
        then(*([change] if change else []), refitted("shop", fields)),
        kind="files",
        **others,
    )


def both(code: int, *said: str, **others: Any) -> Case:
    return Case(dict.fromkeys(BOTH, (code, said)), kind="files", **others)


IDS = ("the ids of the rows of ", "or their order, differ: sort both by the same ids, then start both again")
ROWS_199 = job(rows=ROWS - 1)
SIDEWAYS = job(
    layout="horizontal", rows={"payco": 5, "shop": ROWS}, features=2, id=None, columns=["visits", "spent"],
    normalise={"aggregate": True},
)  # fmt: skip
TOGETHER: dict[str, Case] = {
    "k": differing("kmeans.clusters", "3", "4", job(clusters=4)),
    "tol": differing("kmeans.tol", "0.0", "0.5", job(tol=0.5)),
    "max_iter": differing("kmeans.max_iter", "1", "2", job(max_iter=2), lambda w: longer_store(w, "shop")),
    "the policy": differing("kmeans.reveal.centroids", "payco, shop", "shop", job(reveal={"centroids": ["shop"]})),
    "the start": differing("kmeans.init.seed", "0", "5", job(init={"seed": 5})),
    "the layout": Case(
        {"payco": (4, ("kmeans.", " at shop: agree")), "shop": (4, ("kmeans.", " at payco: agree"))},
        {"shop": SIDEWAYS},
        refitted("shop", SIDEWAYS),
        kind="files",
    ),
    "rows in a shard": differing("engine.rows_per_shard", "120", "64", {"engine": {"rows_per_shard": 64}}),
    "rows": differing(
        "kmeans.rows", "200", "199", ROWS_199, rewritten(lambda table: table.slice(0, ROWS - 1), party="shop")
    ),
    "normalisation": differing("kmeans.normalise.method", "minmax", "zscore", job(normalise={"method": "zscore"})),
    "an id at one party only": differing(
        "kmeans.id", "set", "not set", job(id=None, columns=["visits", "spent"])
    ),
    "ids in another order": both(4, *IDS, change=rewritten(with_ids(lambda ids: ids[::-1]), party="shop")),
    "another id": both(4, *IDS, change=rewritten(with_ids(lambda ids: [7, *ids[1:]]), party="shop")),
    "other column names": differing(
        "kmeans.columns", "amount, visits", "amount, calls", {},
        rewritten(lambda table: table.rename_columns(["amount", "calls"]), party="shop"), layout="horizontal",
    ),
    "columns in another order": differing(
        "kmeans.columns", "amount, visits", "visits, amount", job(columns=list(COMMON[::-1])), layout="horizontal"
    ),
    "rows of a party": differing(
        "kmeans.rows", "{{'payco': 120, 'shop': 80}}", "{{'payco': 121, 'shop': 80}}",
        job(rows={"payco": HALF + 1, "shop": ROWS - HALF}), layout="horizontal",
    ),
}  # fmt: skip


def longer_store(world: World, party: str) -> None:
    file = world.configs[party].store_folder / "manifest.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "iterations": 9}))


# Running them.
@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, World]:
    root = tmp_path_factory.mktemp("worlds")
    layouts = ("vertical", "horizontal")
    with ThreadPoolExecutor(2) as pool:
        made = dict(
            zip(layouts, pool.map(lambda each: make_world(root / each, each, max_iter=1), layouts), strict=True)
        )
    trained = made["vertical"].copied(root / "trained", exchange={"kind": "files"})
    ended = trained.train()
    assert [code for code, _ in ended.values()] == [0, 0], ended
    return {**made, "trained": trained}


@pytest.fixture(scope="module")
def ended(worlds: Mapping[str, World], tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Any]]]:
    """All cases, several of them at a time: where terms differ, parties look again for seconds."""
    root = tmp_path_factory.mktemp("cases")
    with ThreadPoolExecutor(8) as pool:
        cases = {**TOGETHER, **ALONE}
        yield {
            name: pool.submit(run_case, case, worlds, root / str(number))
            for number, (name, case) in enumerate(cases.items())
        }


def run_case(case: Case, worlds: Mapping[str, World], folder: Path) -> tuple[World, Ended]:
    world = worlds["trained" if case.trained else case.layout].copied(folder)
    if case.kind == "files":
        world = world.altered(exchange={"kind": "files"})
    if case.change is not None:
        case.change(world)
    running = {name: world.start(name, case.strike, case.fields.get(name)) for name in case.expected}
    return world, {name: each.wait() for name, each in running.items()}


def check(world: World, name: str, ended: tuple[int, str], expected: Expected) -> None:
    """One sentence that says all it must, the exit code, no traceback and none of the data."""
    (found, output), (code, parts) = ended, expected
    said = sentences(output)
    assert (found, len(said)) == (code, 1), output
    assert "Traceback" not in output
    assert output.splitlines()[-1] == f"error: {said[0]}"
    places = {"folder": world.folder, "data": world.data(name), "store": world.configs[name].store_folder}
    for part in parts:
        assert part.format(**places) in said[0]
    assert "secret-word" not in output
    assert not list(tells_values(output, world.values))


@pytest.mark.parametrize("name", ALONE)
def test_a_party_finds_what_is_wrong_before_it_says_anything(ended: dict[str, Future[Any]], name: str) -> None:
    world, ends = ended[name].result()
    for party, expected in ALONE[name].expected.items():
        check(world, party, ends[party], expected)
        assert not (world.folder / "shop/storage/inbox/test").exists()


@pytest.mark.parametrize("name", TOGETHER)
def test_parties_that_mean_different_jobs_say_what_differs(ended: dict[str, Future[Any]], name: str) -> None:
    world, ends = ended[name].result()
    for party, expected in TOGETHER[name].expected.items():
        check(world, party, ends[party], expected)
        assert not (world.configs[party].run_folder / "checkpoints").exists()


# Disks that are full in the middle, messages that are not right.
@pytest.mark.parametrize("what", ["runs/test/bound.", "checkpoints/1.arrow", "result.json"])
def test_a_full_disk_ends_a_run_that_goes_on_when_there_is_space(
    tmp_path: Path, worlds: Mapping[str, World], what: str
) -> None:
    world = worlds["vertical"].copied(tmp_path / "world")
    payco, shop = world.start("payco", full_disk(what)), world.start("shop")
    check(world, "payco", payco.wait(), (8, ("the disk of {folder}/payco/storage", FULL)))
    shop.kill()
    again = world.train()
    assert [code for code, _ in again.values()] == [0, 0], again


def test_a_full_disk_under_a_gateway_ends_both(tmp_path: Path, worlds: Mapping[str, World]) -> None:
    """Shop is told why its message was not taken, and payco's log says it, too."""
    world = worlds["vertical"].copied(tmp_path / "world", exchange={"timeout_s": 5})
    payco, shop = world.start("payco", full_disk("inbox/")), world.start("shop")
    told = ("the gateway of payco cannot store messages: the disk of {folder}/payco/storage/inbox", FULL)
    check(world, "shop", shop.wait(), (8, told))
    code, output = payco.wait()
    assert code in (5, 8), output
    assert f"the disk of {world.folder}/payco/storage/inbox {FULL}" in output
    again = world.train()
    assert [code for code, _ in again.values()] == [0, 0], again


def late(sender: str = "shop", stage: str = "operand.00.operand") -> Outgoing:
    return Outgoing.of(MessageKey(Address("test", 0, stage, 0), sender, "payco"), {"x": np.arange(9, dtype=np.uint64)})


def truncated() -> Outgoing:
    return Outgoing(late().key, late().payload.slice(0, 99))


FORGED = {
    "truncated": (lambda: parts_of(truncated(), Header.of(late().payload)), "is truncated: 99 of"),
    "under another name": (lambda: parts_of(late("notary")), "under the name of notary"),
}


@pytest.mark.parametrize("what", FORGED)
def test_a_bad_message_to_the_gateway_ends_the_run(tmp_path: Path, worlds: Mapping[str, World], what: str) -> None:
    """Shop has died and payco waits; somebody has shop's certificate and a client of his own."""
    world = worlds["vertical"].copied(tmp_path / "world", exchange={"timeout_s": 6})
    payco = world.start("payco")
    assert world.start("shop", Strike("bound.", event="os.rename")).wait()[0] == -signal.SIGKILL
    parts, because = FORGED[what]
    hostile = raw_client(world.configs["payco"], load_identity(world.configs["shop"]))
    with pytest.raises(flight.FlightServerError, match=because):
        send_raw(hostile, parts())
    check(world, "payco", payco.wait(), (6, ("shop", because, "message test/0/operand.00.operand/0 from")))


@pytest.mark.parametrize("what", ["truncated", "altered", "another's"])
def test_a_bad_message_in_an_outbox_ends_the_run(tmp_path: Path, worlds: Mapping[str, World], what: str) -> None:
    """Shop has died and payco waits; then somebody changes what payco has put into its outbox."""
    world = worlds["vertical"].copied(tmp_path / "world", exchange={"kind": "files"})
    payco = world.start("payco")
    assert world.start("shop", Strike("checkpoints/1.arrow", event="os.rename")).wait()[0] == -signal.SIGKILL
    first, second = sorted((world.folder / "payco/outbox/shop/test/0").glob("assign.*/*.msg"))[:2]
    whole = first.read_bytes()
    changes = {"truncated": whole[:-9], "altered": whole[:50] + b"x" + whole[51:], "another's": second.read_bytes()}
    first.write_bytes(changes[what])
    expected = (6, ("is truncated, altered or not made by payco", f"message test/0/{first.parent.name}/"))
    check(world, "shop", world.start("shop").wait(), expected)
    payco.kill()


def test_a_port_that_is_taken_is_named(tmp_path: Path, worlds: Mapping[str, World]) -> None:
    world = worlds["vertical"].copied(tmp_path / "world")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = world.start("payco", fields={"listen": address}).wait()
    check(world, "payco", ended, (8, (f"the gateway cannot listen on {address}: is the port taken?",)))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_we_may_not_read_is_named(tmp_path: Path, worlds: Mapping[str, World]) -> None:
    world = worlds["vertical"].copied(tmp_path / "world")
    world.data("payco").chmod(0)
    expected = (3, ("the data file {data} cannot be read", "Permission denied"))
    check(world, "payco", world.start("payco").wait(), expected)
