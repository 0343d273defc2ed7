"""Predictions: new rows get the cluster of the nearest centroid, and nothing else is opened."""

import json
import signal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.commands import Strike, assert_all_succeeded, run_all
from support.leak_search import Secrets, evidence_of, leaks, related_forms
from support.prediction_world import (
    AMOUNT,
    GAP,
    NEW_AMOUNT,
    NEW_VISITS,
    VISITS,
    PredictionWorld,
    expected_labels,
    make_prediction_world,
    prediction_config,
    printed,
)
from support.run_results import file_contents, keep_messages, opened_labels, received
from support.worlds import BOTH, DEALER, World, make_world, run_in_threads
from veilmeans.crypto import fixed_point as fixed
from veilmeans.pipelines.planning.plan_vs_run import compare_with_run
from veilmeans.pipelines.predict import run_predict
from veilmeans.pipelines.reporting.status import read_status, show_status
from veilmeans.pipelines.reveal import run_reveal
from veilmeans.transforms.kmeans.plaintext_kmeans import nearest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> PredictionWorld:
    return make_prediction_world(tmp_path_factory.mktemp("trained") / "world")


@pytest.fixture(scope="module")
def predicted(trained: PredictionWorld, tmp_path_factory: pytest.TempPathFactory) -> PredictionWorld:
    """A copy after an undisturbed prediction, with all messages."""
    world = trained.copied(tmp_path_factory.mktemp("predicted") / "world")
    with pytest.MonkeyPatch.context() as patch:
        keep_messages(patch)
        run_in_threads(run_predict, world.prediction.parties)
    return world


def kept_shares(world: World) -> dict[str, bytes]:
    """All shares that the parties keep of a run."""
    return {
        f"{name}/{file}": data
        for name, config in world.parties.items()
        for file, data in file_contents(config.run_folder.path).items()
        if file.endswith(".arrow")
    }


def test_only_the_named_party_gets_ids_and_clusters(predicted: PredictionWorld) -> None:
    payco, shop = (predicted.prediction.run_folder(name) for name in BOTH)
    table = pq.read_table(payco.assignments)
    assert table["id"].to_pylist() == [str(i) for i in range(100, 107)]
    np.testing.assert_array_equal(table["cluster"], expected_labels(predicted))
    assert json.loads(shop.result.read_text()) == {"run": "new", "model": "test"}
    assert not list(shop.path.glob("*.parquet"))
    assert not payco.centroids.exists()
    stages = json.loads(shop.report.read_text())["stages"]
    assert {stage.split(".")[0].split("-")[0] for stage in stages} == {
        "operand",
        "distance",
        "norms",
        "assign",
        "reveal",
    }


def test_costs_are_as_planned(predicted: PredictionWorld) -> None:
    for config in predicted.prediction.parties.values():
        compared = compare_with_run(config)
        for pair in (*compared.steps, compared.total):
            assert {pair.difference(name) for name in ("rounds", "messages", "bytes_sent", "bytes_received")} == {0.0}
        assert compared.total.measured.messages


def test_nothing_but_assignments_is_opened(predicted: PredictionWorld) -> None:
    """Check the stages of all messages, and search everything that shop has for what is hidden from it."""
    prediction = predicted.prediction
    messages = [(key.address, arrays) for key, arrays in received(prediction["shop"]) if key.address.run == "new"]
    stages = {address.stage.split(".")[0].split("-")[0] for address, _ in messages}
    assert stages == {"handshake", "triples", "operand", "distance", "norms", "assign", "reveal", "farewell"}
    opened = [arrays for address, arrays in messages if address.stage.startswith("reveal-")]
    assert opened
    assert {name for arrays in opened for name in arrays} == {"commit.to", "commit.nonce"}
    table = pq.read_table(predicted.trained.run_folder("payco").centroids)
    centroids = np.array([table[name] for name in table.column_names[4:]]).reshape(-1)
    known = np.delete(AMOUNT, GAP)
    normalised = (np.delete(NEW_AMOUNT, GAP) - known.min()) / np.ptp(known)
    words = np.unique(np.concatenate(related_forms(fixed.encode(normalised))))
    labels = np.concatenate(opened_labels(prediction.parties))
    secrets = Secrets(words, np.concatenate([NEW_AMOUNT, normalised, centroids]), [labels], [])
    assert leaks(evidence_of(prediction["shop"], prediction.folder), secrets) == []
    assert leaks(evidence_of(prediction["payco"], prediction.folder), secrets)


def test_the_model_does_not_change(trained: PredictionWorld, predicted: PredictionWorld) -> None:
    for name in BOTH:
        before, after = (file_contents(world.trained.run_folder(name).path) for world in (trained, predicted))
        assert before == after


def test_a_finished_prediction_is_not_repeated_and_more_can_be_opened(predicted: PredictionWorld) -> None:
    before = kept_shares(predicted.prediction)
    assert run_predict(predicted.prediction["shop"]) == predicted.prediction.run_folder("shop").path
    wider = predicted.prediction.altered(kmeans={"reveal": {"assignments": BOTH}})
    run_in_threads(run_reveal, wider.parties)
    table = pq.read_table(wider.run_folder("shop").assignments)
    np.testing.assert_array_equal(table["cluster"], expected_labels(predicted))
    assert before.items() <= kept_shares(predicted.prediction).items()
    assert "'test'" in printed(show_status(wider["shop"], read_status(wider["shop"])))


@pytest.mark.processes
def test_a_killed_and_restarted_party_gives_the_same_shares(
    trained: PredictionWorld, predicted: PredictionWorld, tmp_path: Path
) -> None:
    world = trained.copied(tmp_path / "world").prediction
    peer = world.start("payco", command="predict")
    for strike in (Strike("assignments/1", 2), Strike("result.json"), None):
        code, output = world.start("shop", strike, command="predict").wait()
        assert code == (0 if strike is None else -signal.SIGKILL), output
    code, output = peer.wait()
    assert code == 0, output
    assert str(world.run_folder("payco")) in output
    shares, undisturbed = kept_shares(world), kept_shares(predicted.prediction)
    names = [name for name in shares if "opened" not in name]
    assert {name: shares[name] for name in names} == {name: undisturbed[name] for name in names}
    tables = [pq.read_table(each.run_folder("payco").assignments) for each in (world, predicted.prediction)]
    assert tables[0].equals(tables[1])


@pytest.mark.processes
def test_a_horizontal_prediction_by_the_commands(tmp_path: Path) -> None:
    """The joint scale is the training's and is not opened again; products under encryption, rounds as stages."""
    old = [pa.table({"amount": AMOUNT[part], "visits": VISITS[part]}) for part in (slice(16), slice(16, None))]
    new = [pa.table({"amount": NEW_AMOUNT[part], "visits": NEW_VISITS[part]}) for part in (slice(1), slice(1, None))]
    job = {"layout": "horizontal", "clusters": 3, "max_iter": 2, "init": {"indices": [0, 1, 2]}}
    job |= {"normalise": {"aggregate": True}, "reveal": {"centroids": BOTH}}
    trained = make_world(tmp_path, old, job, beam={"rows_per_shard": 5}, dealer=DEALER)
    trained.train()
    files: dict[str, Path | None] = {name: tmp_path / name / "new.parquet" for name in BOTH}
    for name, table in zip(BOTH, new, strict=True):
        pq.write_table(table, tmp_path / name / "new.parquet")
    rows, reveal = {"payco": 1, "shop": 6}, {"assignments": BOTH}
    staged = trained.altered(beam={"rounds": "stages"}).configs
    configs = {
        name: prediction_config(config, files.get(name), rows, reveal, products="he") for name, config in staged.items()
    }
    prediction = World(tmp_path, configs)
    assert_all_succeeded(run_all("offline", prediction.configs, tmp_path))
    assert_all_succeeded(run_all("predict", prediction.parties, tmp_path))
    table = pq.read_table(trained.run_folder("payco").centroids)
    centroids = np.column_stack([table["amount"], table["visits"]])
    every = np.column_stack([AMOUNT, VISITS])
    low, width = every.min(axis=0), np.ptp(every, axis=0)
    expected = nearest((np.column_stack([NEW_AMOUNT, NEW_VISITS]) - low) / width, (centroids - low) / width)
    opened = [pq.read_table(prediction.run_folder(name).assignments) for name in BOTH]
    assert [each["row"].to_pylist() for each in opened] == [[0], list(range(6))]
    np.testing.assert_array_equal(np.concatenate([each["cluster"].to_numpy() for each in opened]), expected)
    stages = json.loads(prediction.run_folder("shop").report.read_text())["stages"]
    assert not any(stage.startswith(("extremes", "operand")) for stage in stages)
