"""Runs of two parties alone, whose triple stores they made themselves by oblivious transfer and lattices."""

import random
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from support.commands import Strike, assert_all_succeeded, at_rename, run_all
from support.ot_dealing import SMALL
from support.parties import file_mode, in_parallel
from support.run_results import keep_messages, opened_results, received
from support.worlds import (
    BOTH,
    CLUSTERS,
    DEALER,
    World,
    blobs,
    draw_secrets,
    make_world_without_stores,
    run_in_threads,
    tables,
    under_strikes,
)
from veilmeans.io.exchange.exchange import HANDSHAKE
from veilmeans.io.files.secret_files import read_secret
from veilmeans.io.storage.run_report import RunReport
from veilmeans.io.storage.triple_store import TripleStore
from veilmeans.pipelines.offline import run_offline
from veilmeans.pipelines.session.kmeans_from_config import layout_of
from veilmeans.schemas.arrays import Array, Real
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import ConfigError
from veilmeans.transforms.kmeans.initial_centroids import initial_rows
from veilmeans.transforms.kmeans.plaintext_kmeans import lloyd as plaintext_lloyd
from veilmeans.transforms.kmeans.plaintext_kmeans import nearest, plaintext_iteration
from veilmeans.transforms.offline import ot_store
from veilmeans.transforms.offline.ot_setup import OtSetup

COLUMNS = ["amount", "age", "visits", "basket"]
ROWS, HALF, ITERATIONS = 30, 18, 2
PROVIDERS = ("dealer", "ot", "iknp")
Message = tuple[str, str, str]
"""Key of a message, its sender, and the name of one of its arrays."""


@pytest.fixture
def _small_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """LPN sets that are far too small to be secure, and fast."""
    monkeypatch.setattr(ot_store, "OtSetup", partial(OtSetup, setup=SMALL, main=SMALL))


def new_world(folder: Path, provider: str = "ot", layout: str = "vertical", products: str = "beaver") -> World:
    """Two parties with thirty rows in row shards of twelve; nobody has a store."""
    vertical = layout == "vertical"
    data = tables(blobs(ROWS, len(COLUMNS)), COLUMNS, [2] if vertical else [HALF], axis=int(vertical))
    job = {"layout": layout, "clusters": CLUSTERS, "max_iter": ITERATIONS, "products": products}
    job |= {"reveal": {"assignments": BOTH, "centroids": BOTH}, "init": {"indices": [0, 1, 2]}}
    job |= {} if vertical else {"normalise": {"aggregate": True}}
    dealer = DEALER if provider == "dealer" else None
    world = make_world_without_stores(folder, data, job, beam={"rows_per_shard": 12}, dealer=dealer)
    return world.altered(triples={"provider": provider})


def lloyd() -> tuple[list[int], Real]:
    """Each row's cluster and the centroids, in float64 from the same start."""
    data = blobs(ROWS, len(COLUMNS))
    low, high = data.min(axis=0), data.max(axis=0)
    rows = (data - low) / (high - low)
    centroids = rows[:CLUSTERS]
    for _ in range(ITERATIONS):
        labels, centroids = nearest(rows, centroids), plaintext_iteration(lambda: [rows], centroids).centroids
    return labels.tolist(), centroids * (high - low) + low


def clusters(world: World) -> tuple[list[int], Real]:
    """Each row's cluster and the centroids, as they were opened."""
    results, vertical = opened_results(world), world["payco"].required_kmeans.vertical
    rows = results["payco/assignments"] + ([] if vertical else results["shop/assignments"])
    centroids = [[list(row.values())[1:] for row in results[f"{name}/centroids"]] for name in BOTH]
    return [row["cluster"] for row in rows], np.concatenate(centroids, axis=1) if vertical else np.array(centroids[0])


@pytest.mark.usefixtures("_small_sets")
@pytest.mark.parametrize(
    ("layout", "products"),
    [("vertical", "beaver"), ("horizontal", "beaver"), pytest.param("vertical", "he", marks=pytest.mark.long)],
)
def test_all_providers_give_the_clusters_of_lloyd(tmp_path: Path, layout: str, products: str) -> None:
    labels, centroids = lloyd()
    span = np.ptp(blobs(ROWS, len(COLUMNS)), axis=0)
    for provider in PROVIDERS:
        world = new_world(tmp_path / provider, provider, layout, products)
        run_in_threads(run_offline, world.configs)
        assert {TripleStore.open(each.store_folder).manifest.provider for each in world.parties.values()} == {provider}
        world.train()
        found = clusters(world)
        assert found[0] == labels
        assert (np.abs(found[1] - centroids) < 2.0**-14 * span).all()


@pytest.mark.usefixtures("_small_sets")
@pytest.mark.parametrize(
    ("provider", "layout", "products"),
    [
        ("ot", "vertical", "beaver"),
        ("iknp", "horizontal", "beaver"),
        pytest.param("ot", "vertical", "he", marks=pytest.mark.long),
    ],
)
def test_the_best_of_several_starts_and_its_outliers_are_those_of_plaintext(
    tmp_path: Path, provider: str, layout: str, products: str
) -> None:
    starts = {"starts": 3, "init": {"indices": None, "seed": 5}, "outliers": {"count": 4}}
    reveal = {"reveal": {"assignments": BOTH, "centroids": BOTH, "outliers": BOTH}}
    world = new_world(tmp_path, provider, layout, products).altered(kmeans={**starts, **reveal})
    world.train()
    data = blobs(ROWS, len(COLUMNS))
    rows = (data - data.min(axis=0)) / np.ptp(data, axis=0)
    job, shape = world["payco"].required_kmeans, layout_of(world["payco"], world["payco"].required_kmeans)
    ended = [
        plaintext_lloyd(lambda: [rows], rows[list(initial_rows(job, shape, start))], ITERATIONS)[-1].centroids
        for start in range(3)
    ]
    squares = [((rows - each[nearest(rows, each)]) ** 2).sum(axis=1) for each in ended]
    best = min(range(3), key=lambda start: squares[start].sum())
    assert clusters(world)[0] == nearest(rows, ended[best]).tolist()
    names = BOTH[:1] if layout == "vertical" else BOTH
    found = [pq.read_table(world.run_folder(name).outliers).column(0).to_numpy() for name in names]
    numbers = np.concatenate([each + HALF * number for number, each in enumerate(found)])
    assert sorted(numbers.tolist()) == sorted(np.argsort(-squares[best])[:4].tolist())


@pytest.mark.processes
def test_two_commands_at_two_parties_make_a_store_and_use_it(tmp_path: Path) -> None:
    """With the real LPN sets, over TLS. One party has two workers, and Beam deals its places out to them."""
    world = new_world(tmp_path).altered("shop", beam={"workers": 2})
    assert_all_succeeded(run_all("offline", world.configs, tmp_path))
    for config in world.configs.values():
        assert not config.store_folder.making.path.exists()
        assert file_mode(config.store_folder.number_seed(0)) == 0o600
    check_reports(world)
    assert_all_succeeded(run_all("train", world.configs, tmp_path))
    assert clusters(world)[0] == lloyd()[0]
    again = run_all("offline", world.configs, tmp_path)
    assert_all_succeeded(again)


def check_reports(world: World) -> None:
    """What one has sent the other has received, in every round."""
    stages = {name: RunReport(config.offline().run_folder).content["stages"] for name, config in world.configs.items()}
    assert (
        stages["payco"].keys()
        == stages["shop"].keys()
        == {
            f"offline.{name}"
            for name in ("nonce", "points", "choices", "columns", "trees", "extend", "correct", "operands", "responses")
        }
    )
    for one, other in (BOTH, BOTH[::-1]):
        for name, counts in stages[one].items():
            assert counts["bytes_sent"] == stages[other][name]["bytes_received"] > 0


# Deaths.
DEATHS, CHANGES = 5, 100


@pytest.mark.processes
@pytest.mark.long
def test_either_party_killed_at_ten_random_moments_leaves_a_store_that_works(tmp_path: Path) -> None:
    """A gateway refuses another message under a key that it has: then a command would end with an error."""
    world = new_world(tmp_path)
    drawn = random.Random(14)
    strikes = {name: [Strike(number=drawn.randint(1, CHANGES // DEATHS)) for _ in range(DEATHS)] for name in BOTH}
    under_strikes(world, strikes, "offline")
    assert not any(config.store_folder.making.path.exists() for config in world.configs.values())
    assert_all_succeeded(run_all("train", world.configs, tmp_path))
    assert clusters(world)[0] == lloyd()[0]


# A peer that starts afresh.
def transcript(config: JobConfig) -> dict[Message, Array]:
    """All arrays that a party has received since the handshake."""
    return {
        (f"{key.address}", key.sender, name): array
        for key, arrays in received(config)
        for name, array in arrays.items()
        if key.address.stage != HANDSHAKE
    }


def offline_transcripts(world: World) -> dict[str, dict[Message, Array]]:
    """Make the store, and return what each party has received."""
    with pytest.MonkeyPatch.context() as patch:
        keep_messages(patch)
        run_in_threads(run_offline, world.configs)
    return {name: transcript(config) for name, config in world.configs.items()}


def equal_arrays(one: Mapping[Message, Array], other: Mapping[Message, Array]) -> set[str]:
    """The names of the arrays with 16 bytes or more that are equal under one key."""
    assert one.keys() == other.keys()
    return {key[2] for key in one if one[key].nbytes >= 16 and np.array_equal(one[key], other[key])}


@pytest.mark.usefixtures("_small_sets")
@pytest.mark.parametrize("provider", ["ot", pytest.param("iknp", marks=pytest.mark.long)])
def test_a_session_is_repeated_byte_by_byte_only_if_both_have_their_secrets(tmp_path: Path, provider: str) -> None:
    """With a peer that starts afresh, a party sends nothing again but its contribution to the nonce."""
    new = new_world(tmp_path / "new", provider)
    draw_secrets(new["payco"])
    fresh = [new.copied(tmp_path / name) for name in ("one", "other")]
    draw_secrets(new["shop"])
    same = [new.copied(tmp_path / name) for name in ("first", "again")]
    one, other = (offline_transcripts(world) for world in fresh)
    assert equal_arrays(one["shop"], other["shop"]) == {"contribution"}
    assert equal_arrays(one["payco"], other["payco"]) == set()
    assert len({read_secret(world[name].store_folder.file_key) for world in fresh for name in BOTH}) == 4
    first, again = (offline_transcripts(world) for world in same)
    for name in BOTH:
        assert equal_arrays(first[name], again[name]) == {
            key[2] for key, array in first[name].items() if array.nbytes >= 16
        }


@pytest.mark.processes
@pytest.mark.long
def test_a_party_that_lost_its_folder_is_not_answered_until_a_new_store_is_named(tmp_path: Path) -> None:
    """Whatever the other party sends to it again is what it has sent before."""
    world = new_world(tmp_path / "world")
    running = world.start("payco", command="offline")
    assert world.start("shop", at_rename("ots/", 4), command="offline").wait()[0] < 0
    running.kill()
    before = {name: transcript(config) for name, config in world.configs.items()}
    shutil.rmtree(world["shop"].storage)
    hurried = world.altered(exchange={"timeout_s": 8})
    ended = run_all("offline", hurried.configs, tmp_path)
    assert {code for code, _ in ended.values()} == {5}, ended
    assert not any("Traceback" in output for _, output in ended.values())
    after = {name: transcript(config) for name, config in world.configs.items()}
    assert before["payco"].keys() == after["payco"].keys()
    for name in BOTH:
        common = before[name].keys() & after[name].keys()
        assert all(np.array_equal(before[name][key], after[name][key]) for key in common)
    assert_all_succeeded(run_all("offline", world.altered(triples={"store": "new"}).configs, tmp_path))


# Refusals.
def test_an_operand_larger_than_a_message_is_refused_before_the_set_up(tmp_path: Path) -> None:
    world = new_world(tmp_path).altered(exchange={"max_message_mb": 1})

    def refused(config: JobConfig) -> str:
        with pytest.raises(ConfigError) as error:
            run_offline(config)
        return error.value.sentence

    for sentence in in_parallel([partial(refused, config) for config in world.configs.values()]):
        assert all(part in sentence for part in ("max_message_mb is 1", "beam.rows_per_shard", "kmeans.products to he"))
