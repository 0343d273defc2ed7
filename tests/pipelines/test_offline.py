"""`veilmeans offline`: a triple store for several runs, made by separate processes, complete whoever is killed."""

import json
import re
import signal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.commands import assert_all_succeeded, at_rename, run_all
from support.fault_injection import stored_messages
from support.parties import NAMES, in_parallel
from support.run_results import file_contents, opened_results
from support.worlds import BOTH, DEALER, World, blobs, changed_config, make_world_without_stores, tables
from veilmeans.crypto import ring
from veilmeans.crypto.correlations import Mul
from veilmeans.io.storage.run_report import RunReport, bytes_sent, total_count
from veilmeans.io.storage.triple_store import StoreRun, TripleStore
from veilmeans.pipelines.offline import run_offline
from veilmeans.pipelines.session.kmeans_from_config import traced_job
from veilmeans.schemas.address import Address
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import HandshakeError, StorageError
from veilmeans.transforms.rounds.addressed_randomness import AddressedRandomness

COLUMNS = ["amount", "age", "visits", "basket"]
ROWS = 9
RUNS = ITERATIONS = 2
RANGE = float(np.ptp(blobs(ROWS, len(COLUMNS)), axis=0).max())
"""The widest column."""


def new_world(folder: Path, parties: int = 2, kind: str = "gateway", **beam: Any) -> World:
    """Nine rows in three row shards, and a dealer; nobody has a store."""
    data = tables(blobs(ROWS, len(COLUMNS)), COLUMNS, [1, 2][: parties - 1], axis=1)
    job = {"layout": "vertical", "clusters": 2, "max_iter": ITERATIONS}
    job |= {"reveal": {"assignments": NAMES[:parties], "centroids": NAMES[:parties]}}
    return make_world_without_stores(
        folder, data, job, kind, {"rows_per_shard": 4, **beam}, dealer=DEALER, runs=RUNS, iterations=ITERATIONS
    )


def store_shards(world: World) -> int:
    """The number of all shards of a party's store."""
    return RUNS * ITERATIONS * traced_job(world["payco"]).store_shards


def check_stores(world: World) -> None:
    """Check that everyone's store is complete, that all triples multiply, and that no share occurs twice."""
    stores = [TripleStore.open(config.store_folder) for config in world.parties.values()]
    job = traced_job(world["payco"])
    for store in stores:
        assert (store.manifest.runs, store.manifest.iterations, store.manifest.rows) == (RUNS, ITERATIONS, ROWS)
        assert store.manifest.plan == job.digest()
        assert store.next_number() == 0
        assert len(list(store.folder.all_corrections.rglob("*.arrow"))) == store_shards(world)
    places = np.ndindex(RUNS, ITERATIONS, job.store_shards)
    drawn = [share for place in places for share in check_triples(world, stores, *place)]
    assert len(set(drawn)) == len(drawn) > RUNS * ITERATIONS * ROWS


def check_triples(world: World, stores: list[TripleStore], number: int, iteration: int, shard: int) -> list[int]:
    """Check c = a·b for all multiplication triples of one shard; return everyone's shares."""
    drawn: list[int] = []
    for stage, needs in traced_job(world["payco"]).needs(shard, iteration).items():
        address = Address("any", iteration, stage, shard)
        each = [AddressedRandomness(i, b"", StoreRun(store, number), address) for i, store in enumerate(stores)]
        for need in needs:
            if isinstance(need.kind, Mul):
                shares = {p: [one.scoped(need.scope).correlated(need.kind, p) for one in each] for p in "abc"}
                a, b, c = (ring.total(shares[part]) for part in "abc")
                np.testing.assert_array_equal(c, a * b)
                drawn += [
                    value for arrays in shares.values() for array in arrays for value in array.reshape(-1).tolist()
                ]
    return drawn


def check_costs(world: World) -> None:
    """Check everyone's report: the dealer has sent the bytes that the parties have received."""
    costs = {name: RunReport(config.offline().run_folder).content for name, config in world.configs.items()}
    assert {each["shards"] for each in costs.values()} == {store_shards(world)}
    assert all(each["seconds"] > 0 and each["began"] <= each["ended"] for each in costs.values())
    received = sum(total_count(costs[name]["stages"], "bytes_received") for name in world.parties)
    assert bytes_sent(costs[DEALER]["stages"]) == received > 0


def named_run(world: World, run: str) -> World:
    return world.altered(run=run)


def sent_messages(world: World) -> set[str]:
    """The messages in anyone's inbox or outbox."""
    folders = [*world.folder.rglob("inbox"), *world.folder.rglob("outbox")]
    return {f"{folder}/{message}" for folder in folders for message in stored_messages(folder)}


@pytest.mark.processes
@pytest.mark.parametrize(("parties", "kind"), [(2, "gateway"), (3, "files")])
def test_a_store_serves_as_many_runs_as_were_agreed(tmp_path: Path, parties: int, kind: str) -> None:
    """No data are needed to make it. Each run claims a number of its own; one run too many sends nothing."""
    world = new_world(tmp_path, parties, kind).altered(DEALER, beam={"workers": 2})
    data = {name: world.data(name).read_bytes() for name in world.parties}
    for name in data:
        world.data(name).unlink()
    assert_all_succeeded(run_all("offline", world.configs, tmp_path))
    check_stores(world)
    check_costs(world)
    of_dealer = file_contents(tmp_path / DEALER)
    for name, content in data.items():
        world.data(name).write_bytes(content)
    results = []
    for number, run in enumerate(("monday", "tuesday")):
        assert_all_succeeded(run_all("train", named_run(world, run).parties, tmp_path))
        results.append(opened_results(named_run(world, run)))
        claims = [json.loads(each.store_folder.claim(number).read_text()) for each in world.parties.values()]
        assert {claim["run"] for claim in claims} == {run}
    for what, rows in results[0].items():
        if what.endswith("assignments"):
            assert rows == results[1][what]
        else:  # quotients are rounded at random: by other masks, otherwise in the last place
            for one, other in zip(rows, results[1][what], strict=True):
                assert one == pytest.approx(other, rel=0, abs=2**-16 * RANGE)
    before = sent_messages(world)
    ended = run_all("train", named_run(world, "wednesday").parties, tmp_path)
    assert {(code, "'store'" in output, "Traceback" in output) for code, output in ended.values()} == {(8, True, False)}
    assert sent_messages(world) == before
    assert file_contents(tmp_path / DEALER) == of_dealer


@pytest.mark.processes
def test_the_dealer_sees_shapes_and_names_and_never_data(tmp_path: Path) -> None:
    """After a store was made and used, the dealer has agreements, farewells and its report: its seed is gone."""
    world = new_world(tmp_path)
    assert_all_succeeded(run_all("offline", world.configs, tmp_path))
    assert_all_succeeded(run_all("train", world.parties, tmp_path))
    config = world[DEALER].offline()
    kept, folder = file_contents(config.storage), config.run_folder
    bound = [terms for peer in BOTH for terms in (folder.terms(peer, DEALER), folder.terms(DEALER, peer))]
    own = [*bound, folder.farewell, folder.report]
    farewells = [f"{config.run}/{ITERATIONS}/farewell/0.{peer}.{DEALER}.msg" for peer in BOTH]
    assert stored_messages(config.storage_folder.inbox) == sorted(farewells)
    log = f"inbox/{config.run}/{ITERATIONS}/messages.log"
    assert set(kept) == {log, *(str(file.relative_to(config.storage)) for file in own)}
    for file in bound:
        terms = json.loads(file.read_text())
        assert terms["agreed"].keys() <= {
            "protocol version", "parties", "dealer", "beam.rows_per_shard", "beam.values_per_column_shard",
            "link.rate_mbps", "link.round_trip_ms",
            "triples.store", "triples.rows", "triples.runs", "triples.iterations", "triples.provider", "kmeans.rows",
            "kmeans.sweep", "work of the job",
        }  # fmt: skip
        assert terms["binding"] == ""
    words = rb"\b(" + "|".join(COLUMNS).encode() + rb")\b"  # "age" is in "messages", which the report counts
    assert not [name for name, content in kept.items() if re.search(words, content)]


@pytest.mark.processes
def test_a_killed_dealer_resumes_and_the_store_is_complete(tmp_path: Path) -> None:
    """The dealer dies when it has sent seeds and some corrections; meanwhile the parties wait."""
    world = new_world(tmp_path, 3, "files")
    waiting = {name: world.start(name, command="offline") for name in world.parties}
    code, output = world.start(DEALER, at_rename("outbox/", 20), command="offline").wait()
    assert code == -signal.SIGKILL, output
    for config in world.parties.values():
        with pytest.raises(StorageError, match=str(config.store_folder)):
            TripleStore.open(config.store_folder)
    again = {DEALER: world.start(DEALER, command="offline")}
    assert_all_succeeded({name: each.wait() for name, each in (waiting | again).items()})
    check_stores(world)


@pytest.mark.processes
def test_a_killed_party_resumes_and_keeps_what_it_had(tmp_path: Path) -> None:
    world = new_world(tmp_path, 2, "files")
    others = {name: world.start(name, command="offline") for name in ("payco", DEALER)}
    code, output = world.start("shop", at_rename("corrections/", 4), command="offline").wait()
    assert code == -signal.SIGKILL, output
    corrections = world["shop"].store_folder.all_corrections
    first = {path: path.stat().st_mtime_ns for path in corrections.rglob("*.arrow")}
    assert len(first) == 3
    again = {"shop": world.start("shop", command="offline")}
    assert_all_succeeded({name: each.wait() for name, each in (others | again).items()})
    check_stores(world)
    assert {path: path.stat().st_mtime_ns for path in first} == first


def test_a_store_described_differently_is_named_by_all_members(tmp_path: Path) -> None:
    world = new_world(tmp_path, kind="files")
    configs = {**world.configs, "shop": changed_config(world["shop"], triples={"runs": 1000})}

    def refused(config: JobConfig) -> str:
        with pytest.raises(HandshakeError) as error:
            run_offline(config)
        return error.value.sentence

    for name, sentence in zip(configs, in_parallel([partial(refused, each) for each in configs.values()]), strict=True):
        peer = "payco" if name == "shop" else "shop"
        assert [part for part in ("triples.runs", "2", "1,000", peer) if part not in sentence] == []
    assert not any(config.store_folder.path.exists() for config in configs.values())
