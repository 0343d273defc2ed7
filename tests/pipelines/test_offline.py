"""`veilmeans offline`: a store for several runs, made by separate processes, that no mishap spoils or uses twice."""

import json
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.commands import Command, run_all
from support.fault_injection import files_below, wait_for
from support.parties import in_parallel
from support.sums_world import DATA, members, plain, results, set_up
from veilmeans.crypto import ring
from veilmeans.crypto.correlations import Mul
from veilmeans.io.exchange import handshake
from veilmeans.io.storage.run_report import RunReport, bytes_sent, total_count
from veilmeans.io.storage.triple_store import StoreRun, TripleStore
from veilmeans.pipelines import sums
from veilmeans.pipelines.offline import run_offline
from veilmeans.pipelines.session.kmeans_from_config import store_requirements
from veilmeans.schemas.address import Address
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import HandshakeError, InputError, StorageError
from veilmeans.transforms.rounds.addressed_randomness import AddressedRandomness

STAGE = "sums.01.multiply"
LENGTHS = (2, 2, 1)
"""Rows of the three shards."""
SERVES = "the store 'october' serves 2 runs of 2 iterations, 5 rows"


def renamed(configs: Mapping[str, JobConfig], run: str) -> dict[str, JobConfig]:
    return {name: config.model_copy(update={"run": run}) for name, config in configs.items()}


def slow(config: JobConfig) -> JobConfig:
    """The same on a link on which every message takes a while."""
    exchange = {**config.exchange.model_dump(), "shape": {"rate_mbps": 1000, "round_trip_ms": 250}}
    return JobConfig.model_validate({**config.model_dump(), "exchange": exchange})


def check_stores(configs: Mapping[str, JobConfig], runs: int = 2, iterations: int = 2) -> None:
    """Everyone's store is complete, everything in it multiplies, and no two shares are alike."""
    stores = [TripleStore.open(config.store_folder) for config in members(configs).values()]
    for store, config in zip(stores, members(configs).values(), strict=True):
        assert (store.manifest.runs, store.manifest.iterations, store.manifest.rows) == (runs, iterations, 5)
        assert store.manifest.plan == store_requirements(config).digest()
        assert store.next_number() == 0
    drawn = []
    for number in range(runs):
        for iteration in range(iterations):
            for shard, length in enumerate(LENGTHS):
                kind, where = Mul(len(stores), (length, 1)), Address("any", iteration, STAGE, shard)
                each = [AddressedRandomness(i, b"", StoreRun(s, number), where) for i, s in enumerate(stores)]
                shares = {part: [one.correlated(kind, part) for one in each] for part in "abc"}
                a, b, c = (ring.total(shares[part]) for part in "abc")
                np.testing.assert_array_equal(c, a * b)
                drawn += [value for arrays in shares.values() for array in arrays for value in array.reshape(-1)]
    assert len(set(drawn)) == len(drawn) == runs * iterations * sum(LENGTHS) * 3 * len(stores)
    for store in stores:
        assert len(files_below(store.folder / "corrections")) == runs * iterations * len(LENGTHS)


def all_done(ended: Mapping[str, tuple[int, str]], last: str | None = None) -> None:
    assert [code for code, _ in ended.values()] == [0] * len(ended), ended
    for _, output in ended.values():
        assert "Traceback" not in output
        assert last is None or output.splitlines()[-1] == last


@pytest.mark.parametrize(("parties", "kind"), [(2, "gateway"), (3, "files")])
def test_a_store_serves_its_runs_each_with_a_part_of_its_own_and_no_more(
    tmp_path: Path, parties: int, kind: str
) -> None:
    configs = set_up(tmp_path, parties, kind, {"notary": {"workers": 2}}, runs=2, iterations=2)
    data = {file: file.read_bytes() for file in tmp_path.glob("*.csv")}
    assert len(data) == parties
    for file in data:
        file.unlink()
    all_done(run_all("offline", configs, tmp_path), SERVES)
    check_stores(configs)
    check_costs(configs)
    dealer = contents(tmp_path / "notary")
    for file, content in data.items():
        file.write_bytes(content)
    for number, run in enumerate(("monday", "tuesday")):
        all_done(run_all("sums", members(renamed(configs, run)), tmp_path))
        assert results(renamed(configs, run)) == dict.fromkeys(members(configs), plain(parties))
        for config in members(configs).values():
            claim = json.loads((config.store_folder / "claims" / f"{number}.json").read_text())
            assert claim["run"] == run
    before = everything_sent(configs)
    ended = run_all("sums", members(renamed(configs, "wednesday")), tmp_path)
    used_up = "the store 'october' serves 2 runs and has 0 left, 1 needed: make a new store with `veilmeans offline`"
    assert set(ended.values()) == {(8, f"error: {used_up}\n")}
    assert everything_sent(configs) == before
    assert not any("wednesday" in path for path in before)
    assert contents(tmp_path / "notary") == dealer


def check_costs(configs: Mapping[str, JobConfig], runs: int = 2, iterations: int = 2) -> None:
    """Everyone has kept what the store has cost: what the dealer sent is what the parties received."""
    costs = {name: RunReport(config.offline().run_folder).content for name, config in configs.items()}
    assert {each["shards"] for each in costs.values()} == {runs * iterations * len(LENGTHS)}
    assert all(each["seconds"] > 0 and each["began"] <= each["ended"] for each in costs.values())
    received = sum(total_count(costs[name]["stages"], "bytes_received") for name in members(configs))
    assert bytes_sent(costs["notary"]["stages"]) == received == runs * iterations * sum(LENGTHS) * 8
    assert costs["notary"]["stages"][STAGE] == {"bytes_sent": received}


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in files_below(folder)}


def everything_sent(configs: Mapping[str, JobConfig]) -> set[str]:
    """Messages in anyone's inbox or outbox."""
    folders = [config.storage.parent for config in configs.values()]
    return {f"{folder.name}/{path.relative_to(folder)}" for folder in folders for path in folder.rglob("*.msg")}


def test_the_dealer_sees_shapes_and_names_and_never_data(tmp_path: Path) -> None:
    """All that a dealer's folder holds after a store was made and used, word for word: its seed is gone."""
    configs = set_up(tmp_path, 2, "gateway", {})
    all_done(run_all("offline", configs, tmp_path))
    all_done(run_all("sums", members(configs), tmp_path))
    kept = contents(configs["notary"].storage)
    peers = ("payco", "shop")
    bound = {f"runs/store-october/bound.{a}.json" for p in peers for a in (f"{p}-to-notary", f"notary-to-{p}")}
    farewells = {f"inbox/store-october/1/farewell/0.{p}.notary.msg" for p in peers}
    own = {f"runs/store-october/{name}" for name in ("farewell", "report.json")}
    assert set(kept) == bound | farewells | own
    for name in bound:
        said = json.loads(kept[name])
        assert set(said["agreed"]) == {
            "protocol version", "parties", "dealer", "engine.rows_per_shard",
            "triples.runs", "triples.iterations", "triples.rows", "work of the job",
        }  # fmt: skip
        assert (said["announced"], said["binding"]) == ({}, "")
    columns = [column.encode() for party in peers for column in DATA[party]]
    words = rb"\b(" + b"|".join(columns) + rb")\b"  # "age" is in "messages", which the report counts
    assert not any(re.search(words, content) for content in kept.values())


def test_a_dealer_that_is_killed_and_started_again_makes_a_whole_store(tmp_path: Path) -> None:
    """A slow link gives the time to kill it while it deals; meanwhile the parties wait."""
    configs = set_up(tmp_path, 3, "gateway", {}, runs=2, iterations=2)
    waiting = [Command("offline", config, tmp_path) for config in members(configs).values()]
    dealer = Command("offline", slow(configs["notary"]), tmp_path)
    taken = configs["bank"].store_folder / "corrections"
    wait_for(lambda: len(list(taken.rglob("*.arrow"))) >= 3)
    dealer.kill()
    assert 3 <= len(list(taken.rglob("*.arrow"))) < 12
    with pytest.raises(StorageError, match="there is no complete triple store"):
        TripleStore.open(configs["bank"].store_folder)
    again = Command("offline", configs["notary"], tmp_path)
    all_done({str(i): each.wait() for i, each in enumerate([*waiting, again])}, SERVES)
    check_stores(configs)


def test_a_party_that_is_killed_and_started_again_takes_in_what_is_missing(tmp_path: Path) -> None:
    configs = set_up(tmp_path, 2, "files", {}, runs=2, iterations=2)
    others = [Command("offline", config, tmp_path) for config in (configs["payco"], slow(configs["notary"]))]
    shop = Command("offline", configs["shop"], tmp_path)
    taken = configs["shop"].store_folder / "corrections"
    wait_for(lambda: len(list(taken.rglob("*.arrow"))) >= 2)
    shop.kill()
    first = {path: path.stat().st_mtime_ns for path in taken.rglob("*.arrow")}
    assert len(first) < 12
    again = Command("offline", configs["shop"], tmp_path)
    all_done({str(i): each.wait() for i, each in enumerate([*others, again])}, SERVES)
    check_stores(configs)
    assert {path: path.stat().st_mtime_ns for path in first} == first


# In this process.
def test_rows_that_are_not_those_of_the_store_are_told(tmp_path: Path) -> None:
    payco = set_up(tmp_path, 2, "files", {}, rows=6)["payco"]
    with pytest.raises(InputError, match=r"the data of payco have 5 rows, and triples\.rows is 6"):
        sums.run_sums(payco)


def test_a_run_without_its_store_is_told(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"no complete triple store in .*/payco/storage/triples/october: run"):
        sums.run_sums(set_up(tmp_path, 2, "files", {})["payco"])


def test_a_store_described_differently_is_named_at_all_sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "_GRACE", 0.05)
    configs = set_up(tmp_path, 2, "files", {}, runs=2)
    triples = configs["shop"].required_triples.model_copy(update={"runs": 1000})
    configs["shop"] = configs["shop"].model_copy(update={"triples": triples})

    def refused(config: JobConfig) -> Any:
        with pytest.raises(HandshakeError) as error:
            run_offline(config)
        return error.value.sentence.split(":")[0]

    assert in_parallel([partial(refused, config) for config in configs.values()]) == [
        "triples.runs is 2 here and 1,000 at shop",
        "triples.runs is 1,000 here and 2 at payco",
        "triples.runs is 2 here and 1,000 at shop",
    ]
    assert not any(config.store_folder.exists() for config in configs.values())
