"""Predictions: new rows get the cluster of the nearest centroid, which nobody sees; a run of its own, whole and alone.

In memory over all layouts, parties and engines; then whole runs over real data, one with a party that is killed.
"""

import json
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from support.commands import run_all
from support.fault_injection import in_a_process
from support.fixed_values import COSTS, fix_costs
from support.in_process_run import deal_all, keep_messages, labels_of, received, together, train
from support.kmeans_in_memory import (
    SMALL,
    assert_near_ties_only,
    horizontal,
    integer_scores,
    kmeans_for,
    run_prediction,
    vertical,
)
from support.leak_search import Secrets, evidence_of, forms, leaks
from support.parties import make_configs, write_config
from support.train_world import Strike, _train, contents, merged
from veilmeans.crypto import fixed_point as fixed
from veilmeans.io.sources.column_encoding import ColumnEncoding, EncodingRules
from veilmeans.io.sources.encode import encode_source
from veilmeans.io.sources.scaling import Scaling
from veilmeans.io.sources.scan import scan_source
from veilmeans.io.storage.encoded_shards import read_rows
from veilmeans.pipelines.configure.data_summary import show_data
from veilmeans.pipelines.planning.engine_selection import select_all_engines
from veilmeans.pipelines.planning.job_plan import plan_train
from veilmeans.pipelines.planning.plan_vs_run import compare_with_run
from veilmeans.pipelines.predict import run_predict
from veilmeans.pipelines.prepare import prepare_data
from veilmeans.pipelines.reporting.plan_table import show_plan
from veilmeans.pipelines.reporting.status import show_status
from veilmeans.pipelines.reveal import run_reveal
from veilmeans.pipelines.session.kmeans_from_config import (
    job_digest,
    kmeans_steps,
    store_iterations,
    store_requirements,
)
from veilmeans.pipelines.session.kmeans_run import check_run
from veilmeans.pipelines.session.trained_model import _check_columns
from veilmeans.pipelines.train import run_train
from veilmeans.schemas.arrays import Real
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import ConfigError, VeilmeansError
from veilmeans.schemas.handshake_terms import first_difference
from veilmeans.schemas.kmeans_config import CipherConfig, KMeansConfig, PredictConfig
from veilmeans.schemas.layout import VALUES_PER_COLUMN_SHARD, Layout
from veilmeans.transforms.kmeans.plaintext_kmeans import nearest
from veilmeans.transforms.kmeans.steps import KMeansSteps, steps_of


# The protocol, in memory.
def kmeans_that_predicts(layout: Layout, k: int, margin: float = 1.0, **fields: Any) -> KMeansSteps:
    cipher = CipherConfig.model_construct(scheme=SMALL.scheme, bits=SMALL.bits)
    predict = PredictConfig(model="model", margin=margin)
    return kmeans_for(layout, k, inertia=False, cipher=cipher, predict=predict, **fields)


def drawn(seed: int, n: int, d: int, k: int, margin: float) -> tuple[Real, Real]:
    """New rows as far outside as they may be, some at its corners; centroids within, the last like the first."""
    rng = np.random.default_rng([seed, n, d, k])
    centres = rng.random((k, d))
    centres[-1] = centres[0]
    if k > 2:
        centres[1] = rng.integers(0, 2, d)
    rows = rng.uniform(-margin, 1 + margin, (n, d))
    corners = rng.random(n) < 0.3
    rows[corners] = rng.choice([-margin, 1 + margin], (corners.sum(), d))
    return rows, centres


def layout_of(vertically: bool, parties: int, n: int, d: int) -> Layout:
    """Parts of unequal size, some of nothing; the last shard has one row."""
    if vertically:
        return vertical(n, (1, *(0,) * (parties - 2), d - 1), max(1, n - 1))
    return horizontal((n - n // 2, *(0,) * (parties - 2), n // 2), d, max(1, n - n // 2 - 1))


@settings(max_examples=15, deadline=None)
@given(
    vertically=st.booleans(),
    parties=st.sampled_from([2, 3]),
    n=st.sampled_from([1, 2, 9]),
    d=st.sampled_from([2, 5, 40]),
    k=st.sampled_from([1, 2, 3, 5]),
    margin=st.sampled_from([0.0, 1.0, 7.5]),
    seed=st.integers(0, 1000),
)
def test_rows_get_the_nearest_centroid(
    vertically: bool, parties: int, n: int, d: int, k: int, margin: float, seed: int
) -> None:
    """With no bit dropped exactly, and ties go to the lower index; else but for near-ties."""
    rows, centres = drawn(seed, n, d, k, margin)
    layout = layout_of(vertically, parties, n, d)
    exact = run_prediction(kmeans_that_predicts(layout, k, margin, drop_bits=0), rows, centres)
    np.testing.assert_array_equal(exact, integer_scores(rows, centres).argmin(axis=1))
    narrow = kmeans_that_predicts(layout, k, margin)
    assert_near_ties_only(narrow, rows, centres, run_prediction(narrow, rows, centres))


@pytest.mark.parametrize(("vertically", "parties", "n", "k"), [(True, 2, 5, 3), (False, 3, 4, 2), (True, 3, 1, 1)])
def test_rows_get_the_nearest_centroid_under_encryption(vertically: bool, parties: int, n: int, k: int) -> None:
    rows, centres = drawn(1, n, 5, k, 1.0)
    layout = layout_of(vertically, parties, n, 5)
    kmeans = kmeans_that_predicts(layout, k, products="he", drop_bits=0)
    assert not kmeans.engines.masked
    found = run_prediction(kmeans, rows, centres)
    np.testing.assert_array_equal(found, integer_scores(rows, centres).argmin(axis=1))


@settings(max_examples=60, deadline=None)
@given(d=st.integers(1, 300), margin=st.floats(0, 50), seed=st.integers(0, 99))
def test_comparisons_have_room_for_what_is_farthest_outside(d: int, margin: float, seed: int) -> None:
    """Two distances of a row differ by less than half the range of the comparison, centroids at either end of it."""
    tree = kmeans_that_predicts(horizontal((1, 0), d, 1), 2, margin).tree
    ends = np.random.default_rng(seed).integers(0, 2, d)
    farthest = np.where(ends, 1 + margin, -margin)
    centres = np.array([ends, 1 - ends], np.float64)
    scores = integer_scores(farthest[None], centres)[0]
    assert abs(int(scores[1] - scores[0])) + 1 < 2 ** (tree.compare_bits - 1)


@pytest.mark.parametrize("products", ["beaver", "he"])
def test_a_prediction_does_half_an_iteration(products: str) -> None:
    layout = vertical(9, (2, 3), 4)
    kmeans, trained = kmeans_that_predicts(layout, 3, products=products), kmeans_for(layout, 3, products=products)
    first = "operand" if products == "beaver" else "encrypt"
    names = [step.name for step in steps_of(kmeans, opened=("reveal-assignments",))]
    assert names == [first, "distance", "assign", "reveal-assignments"]
    stages = {stage.name.split(".")[0] for _, stage in kmeans.plan().counted(0)}
    assert stages == {first, "distance", "assign"}
    assert kmeans.plan().digest() != trained.plan().digest()
    assert repr(kmeans) != repr(trained)


# Whole runs.
COLOURS = ["blue", "green", "red"]
KINDS, NEW = np.arange(30) % 3, np.array([2, 0, 1, 1, 0, 2, 2])
RNG = np.random.default_rng(3)
AMOUNT, VISITS = KINDS * 10 + RNG.normal(size=30), KINDS * -4 + RNG.normal(size=30)
GAP = 4
"""A row without an amount, among the trained and among the new."""
NEW_AMOUNT, NEW_VISITS = NEW * 10 + RNG.normal(size=7), NEW * -4 + RNG.normal(size=7)
NEW_AMOUNT[0], NEW_VISITS[1] = 33.0, 9.0
"""Outside the trained range, within the margin."""


@dataclass(frozen=True)
class World:
    """A folder with two parties that have trained, and their configurations for a prediction."""

    folder: Path
    trained: Mapping[str, JobConfig]
    configs: Mapping[str, JobConfig]

    def copied(self, folder: Path) -> "World":
        shutil.copytree(self.folder, folder)
        there = ({n: _moved(c, self.folder, folder) for n, c in each.items()} for each in (self.trained, self.configs))
        return World(folder, *there)


def _moved(config: JobConfig, here: Path, there: Path) -> JobConfig:
    return JobConfig.model_validate_json(config.model_dump_json().replace(f"{here}/", f"{there}/"))


def changed(config: JobConfig, **fields: Any) -> JobConfig:
    return JobConfig.model_validate(merged(config.model_dump(), fields))


def prediction(config: JobConfig, data: Path | None, rows: object, reveal: object, **job: Any) -> JobConfig:
    """The configuration of a prediction by the run of `config`."""
    content = config.model_dump()
    kmeans = content["kmeans"] | {"rows": rows, "predict": {"model": config.run}, "reveal": reveal, **job}
    return JobConfig.model_validate(
        content
        | {"run": "new", "triples": {"store": "new"}}
        | {"kmeans": kmeans if data is None else kmeans | {"data": str(data)}}
    )


def tables(ids: Real, kinds: Real, amount: Real, visits: Real) -> dict[str, pa.Table]:
    """What payco has of some rows, and what shop has."""
    known = pa.array([None if i == GAP else value for i, value in enumerate(amount)], pa.float64())
    payco = pa.table({"id": ids, "colour": [COLOURS[kind] for kind in kinds], "amount": known})
    return {"payco": payco, "shop": pa.table({"id": ids, "visits": visits})}


@pytest.fixture(scope="module")
def vertical_world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Vertical, from CSV: payco has categories and gaps, and gets all centroids; shop works in stages."""
    folder = tmp_path_factory.mktemp("vertical") / "world"
    job = {
        "layout": "vertical",
        "rows": 30,
        "features": {"payco": 4, "shop": 1},
        "clusters": 3,
        "max_iter": 2,
        "tol": 0,
    }
    job |= {"id": "id", "init": {"indices": [0, 1, 2]}, "reveal": {"centroids": ["payco"], "columns": "all"}}
    configs = make_configs(folder, triples={"store": "store"}, engine={"rows_per_shard": 3}, kmeans=job)
    old = tables(np.arange(30), KINDS, AMOUNT, VISITS)
    new = tables(np.arange(100, 107), NEW, NEW_AMOUNT, NEW_VISITS)
    encoding = {"payco": {"one_hot": ["colour"], "missing": "mean"}, "shop": {}}
    trained, configured = {}, {}
    for name, config in configs.items():
        for table, file in ((old[name], "old.csv"), (new[name], "new.csv")):
            pa.csv.write_csv(table, folder / name / file)
        rounds = {"rounds": "stages" if name == "shop" else "auto"}
        own = {**encoding[name], "data": str(folder / name / "old.csv")}
        trained[name] = changed(config, engine=rounds, kmeans=own)
        configured[name] = prediction(trained[name], folder / name / "new.csv", 7, {"assignments": ["payco"]})
    deal_all(trained)
    train(trained)
    deal_all(configured)
    return World(folder, trained, configured)


def expected_labels(world: World) -> Real:
    """Of plaintext rows, scaled by the trained ranges, and centroids as they were opened to payco."""
    found = pq.read_table(world.trained["payco"].run_folder / "centroids.parquet")
    assert found.column_names == ["cluster", *(f"payco.colour={c}" for c in COLOURS), "payco.amount", "shop.visits"]
    centres = np.array([found[name] for name in found.column_names[1:]]).T
    known = np.delete(AMOUNT, GAP)
    new = np.where(np.arange(7) == GAP, known.mean(), NEW_AMOUNT)
    low = np.array([0, 0, 0, known.min(), VISITS.min()])
    width = np.array([1, 1, 1, np.ptp(known), np.ptp(VISITS)])
    rows = np.column_stack([NEW[:, None] == np.arange(3), new, NEW_VISITS])
    return nearest((rows - low) / width, (centres - low) / width)


def shares_of(world: World) -> dict[str, bytes]:
    """All shares that the parties keep of the prediction."""
    return {
        f"{name}/{file}": data
        for name, config in world.configs.items()
        for file, data in contents(config.run_folder).items()
        if file.endswith(".arrow")
    }


@pytest.fixture(scope="module")
def predicted(vertical_world: World, tmp_path_factory: pytest.TempPathFactory) -> World:
    """The prediction in peace; nobody drops a message."""
    world = vertical_world.copied(tmp_path_factory.mktemp("predicted") / "world")
    with pytest.MonkeyPatch.context() as patch:
        keep_messages(patch)
        together(run_predict, world.configs)
    return world


def test_a_vertical_prediction(predicted: World) -> None:
    """Who is named gets the new rows' ids and clusters, and the other nothing."""
    payco, shop = (predicted.configs[name].run_folder for name in ("payco", "shop"))
    found = pq.read_table(payco / "assignments.parquet")
    assert found["id"].to_pylist() == [str(i) for i in range(100, 107)]
    np.testing.assert_array_equal(found["cluster"], expected_labels(predicted))
    assert json.loads((shop / "result.json").read_text()) == {"run": "new", "model": "test"}
    assert not list(shop.glob("*.parquet"))
    assert not (payco / "centroids.parquet").exists()
    stages = json.loads((shop / "report.json").read_text())["stages"]
    assert {stage.split(".")[0].split("-")[0] for stage in stages} == {"operand", "distance", "assign", "reveal"}


def test_what_it_costs_is_what_was_planned(predicted: World, monkeypatch: pytest.MonkeyPatch) -> None:
    fix_costs(monkeypatch)
    for config in predicted.configs.values():
        found = compare_with_run(config)
        for pair in (*found.steps, found.total):
            assert {pair.difference(name) for name in ("rounds", "messages", "bytes_sent", "bytes_received")} == {0.0}
        assert found.total.measured.messages


def test_nothing_but_assignments_is_opened(predicted: World) -> None:
    """By the names of all messages, and by looking for what is hidden from shop in all that it has."""
    shop = predicted.configs["shop"]
    messages = [(key.address, arrays) for key, arrays in received(shop) if key.address.run == "new"]
    stages = {address.stage.split(".")[0].split("-")[0] for address, _ in messages}
    assert stages == {"handshake", "triples", "operand", "distance", "assign", "reveal", "farewell"}
    opened = [arrays for address, arrays in messages if address.stage.startswith("reveal-")]
    assert opened
    assert not any(opened)
    found = pq.read_table(predicted.trained["payco"].run_folder / "centroids.parquet")
    centres = np.array([found[name] for name in found.column_names[4:]]).reshape(-1)
    known = np.delete(AMOUNT, GAP)
    normalised = (np.delete(NEW_AMOUNT, GAP) - known.min()) / np.ptp(known)
    words = np.unique(np.concatenate(forms(fixed.encode(normalised))))
    secrets = Secrets(
        words, np.concatenate([NEW_AMOUNT, normalised, centres]), [np.concatenate(labels_of(predicted.configs))], []
    )
    assert leaks(evidence_of(shop, predicted.folder), secrets) == []
    assert leaks(evidence_of(predicted.configs["payco"], predicted.folder), secrets)


def test_the_model_is_as_it_was(vertical_world: World, predicted: World) -> None:
    for name in vertical_world.trained:
        before, after = (contents(world.trained[name].run_folder) for world in (vertical_world, predicted))
        assert before == after


def test_again_and_later(predicted: World) -> None:
    """A finished prediction is not repeated; more of it can be opened, if all agree."""
    before = shares_of(predicted)
    assert run_predict(predicted.configs["shop"]) == predicted.configs["shop"].run_folder
    wider = {n: changed(c, kmeans={"reveal": {"assignments": ["payco", "shop"]}}) for n, c in predicted.configs.items()}
    together(run_reveal, wider)
    found = pq.read_table(wider["shop"].run_folder / "assignments.parquet")
    np.testing.assert_array_equal(found["cluster"], expected_labels(predicted))
    assert before.items() <= shares_of(predicted).items()
    assert "assigned to clusters of 'test'" in shown(show_status(wider["shop"]))


def shown(what: Any) -> str:
    from rich.console import Console

    console = Console(width=200)
    with console.capture() as capture:
        console.print(what)
    return capture.get()


def test_processes_of_which_one_is_killed(vertical_world: World, predicted: World, tmp_path: Path) -> None:
    """Shares and result are those of the run in peace, bit for bit."""
    world = vertical_world.copied(tmp_path / "world")
    strikes = [Strike("assignments/1", 2), Strike("result.json")]
    files = {name: write_config(config, tmp_path / f"{name}.yaml") for name, config in world.configs.items()}

    def start(name: str, strike: Strike | None) -> Any:
        log = tmp_path / f"{name}-{time.monotonic_ns()}.log"
        return log, in_a_process(
            _train, ["predict", "--config", str(files[name])], log, strike, VALUES_PER_COLUMN_SHARD
        )

    log, peer = start("payco", None)
    for strike in [*strikes, None]:
        said, process = start("shop", strike)
        process.join(120)
        assert process.exitcode == (0 if strike is None else -signal.SIGKILL), said.read_text()
    peer.join(120)
    assert peer.exitcode == 0, log.read_text()
    assert "results: " in log.read_text()
    names = [name for name in shares_of(world) if "opened" not in name]
    assert {name: shares_of(world)[name] for name in names} == {name: shares_of(predicted)[name] for name in names}
    found, peace = (
        pq.read_table(each.configs["payco"].run_folder / "assignments.parquet") for each in (world, predicted)
    )
    assert found.equals(peace)


def test_a_horizontal_prediction_by_the_commands(tmp_path: Path) -> None:
    """Trained with the scale of all rows, which is not opened again; products under encryption, rounds as stages."""
    rows = {"payco": (AMOUNT[:16], VISITS[:16]), "shop": (AMOUNT[16:], VISITS[16:])}
    new = {"payco": (NEW_AMOUNT[:1], NEW_VISITS[:1]), "shop": (NEW_AMOUNT[1:], NEW_VISITS[1:])}
    job = {
        "layout": "horizontal",
        "rows": {"payco": 16, "shop": 14},
        "features": 2,
        "clusters": 3,
        "max_iter": 2,
        "tol": 0,
    }
    job |= {
        "init": {"indices": [0, 1, 2]},
        "normalise": {"aggregate": True},
        "reveal": {"centroids": ["payco", "shop"]},
    }
    configs = make_configs(
        tmp_path, dealer="notary", triples={"store": "store"}, engine={"rows_per_shard": 5}, kmeans=job
    )
    for name, old in rows.items():
        for values, file in ((old, "old"), (new[name], "new")):
            table = pa.table(dict(zip(("amount", "visits"), values, strict=True)))
            pq.write_table(table, tmp_path / name / f"{file}.parquet")
        configs[name] = changed(configs[name], kmeans={"data": str(tmp_path / name / "old.parquet")})
    trained = {name: configs[name] for name in rows}
    deal_all(trained)
    train(trained)
    more = {"products": "he", "clusters": 3}
    predictions = {
        name: prediction(
            changed(config, engine={"rounds": "stages"}),
            None if name == "notary" else tmp_path / name / "new.parquet",
            {"payco": 1, "shop": 6},
            {"assignments": ["payco", "shop"]},
            **more,
        )
        for name, config in configs.items()
    }
    made = run_all("offline", predictions, tmp_path)
    assert {code for code, _ in made.values()} == {0}, made
    ended = run_all("predict", {name: predictions[name] for name in rows}, tmp_path)
    assert {code for code, _ in ended.values()} == {0}, ended
    found = pq.read_table(trained["payco"].run_folder / "centroids.parquet")
    centres = np.array([found["amount"], found["visits"]]).T
    every = np.column_stack([AMOUNT, VISITS])
    low, width = every.min(axis=0), np.ptp(every, axis=0)
    expected = nearest((np.column_stack([NEW_AMOUNT, NEW_VISITS]) - low) / width, (centres - low) / width)
    got = [pq.read_table(predictions[name].run_folder / "assignments.parquet") for name in rows]
    assert [each["row"].to_pylist() for each in got] == [[0], list(range(6))]
    np.testing.assert_array_equal(np.concatenate([each["cluster"].to_numpy() for each in got]), expected)
    stages = json.loads((predictions["shop"].run_folder / "report.json").read_text())["stages"]
    assert not any(stage.startswith(("extremes", "operand", "norms")) for stage in stages)


# What is refused.
def refused(job: Callable[[], object]) -> str:
    with pytest.raises(VeilmeansError) as error:
        job()
    return error.value.sentence


def rewritten(world: World, tmp_path: Path, table: pa.Table, **job: Any) -> JobConfig:
    """payco's prediction with other rows."""
    pa.csv.write_csv(table, tmp_path / "other.csv")
    return changed(
        world.configs["payco"],
        storage=world.configs["payco"].storage,
        kmeans={"data": str(tmp_path / "other.csv"), **job},
    )


def new_rows() -> pa.Table:
    return tables(np.arange(100, 107), NEW, NEW_AMOUNT, NEW_VISITS)["payco"]


def with_column(table: pa.Table, name: str, values: Any) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, [values])


def test_data_that_are_not_like_the_models(vertical_world: World, tmp_path: Path) -> None:
    table = new_rows()
    renamed = rewritten(vertical_world, tmp_path, table.rename_columns(["id", "colour", "sum"]))
    assert "other.csv has no column 'amount'; it has id, colour, sum" in refused(lambda: prepare_data(renamed))
    odd = rewritten(vertical_world, tmp_path, with_column(table, "colour", ["mauve", *["red"] * 6]))
    assert "other.csv, row 1, column 'colour'" in refused(lambda: prepare_data(odd))
    assert "7 rows, 4 columns" in prepare_data(changed(odd, kmeans={"unseen": "ignore"}))
    few = rewritten(vertical_world, tmp_path, with_column(table, "colour", ["red"] * 7), rows=7)
    assert "colour=blue, colour=green, colour=red, amount" in prepare_data(few)
    assert "3 categories: blue, green, red" in shown(show_data(few))


def test_a_value_beyond_the_margin(vertical_world: World, tmp_path: Path) -> None:
    """The trained amounts have a width of about 22: 60 is more than one width beyond them."""
    far = rewritten(vertical_world, tmp_path, with_column(new_rows(), "amount", [1.0, 2, 3, 60, 5, 6, 7]))
    sentence = refused(lambda: prepare_data(far))
    assert "other.csv, row 4, column 'amount': the normalised value is above 2; raise kmeans.predict.margin" in sentence
    assert "outside to clip" in sentence
    for predict in ({"outside": "clip"}, {"margin": 3.0}):
        assert "7 rows" in prepare_data(changed(far, kmeans={"predict": predict}))


def test_one_row_with_a_gap(vertical_world: World, tmp_path: Path) -> None:
    one = rewritten(vertical_world, tmp_path, new_rows().slice(GAP, 1), rows=1)
    assert "1 rows, 4 columns" in prepare_data(one)


def test_sparse_rows_are_read_as_the_models_were(tmp_path: Path) -> None:
    """svmlight indices count from where they did, whatever the new rows have; an archive must be as wide."""
    texts = {"from0": "1 0:1 2:2\n", "from1": "1 1:1 3:2\n", "new": "1 1:5\n", "other": "1 0:5\n"}
    for name, text in texts.items():
        (tmp_path / f"{name}.svm").write_text(text)

    def columns(model: str, new: str) -> list[int]:
        known = scan_source(str(tmp_path / f"{model}.svm"), (), None, tmp_path, 3).encoding.again(EncodingRules())
        scan = scan_source(str(tmp_path / f"{new}.svm"), (), None, tmp_path, 3, None, known)
        assert scan.fields == known
        prepared = encode_source(scan, Scaling((0.0,) * 3, (1.0,) * 3), (0, 9), 1, tmp_path)
        return read_rows(prepared.folder, 0).indices.tolist()

    assert [columns("from0", "new"), columns("from1", "new"), columns("from0", "other")] == [[1], [0], [0]]
    assert "other.svm, line 1: an index beyond the 3 columns" in refused(lambda: columns("from1", "other"))
    scipy.sparse.save_npz(tmp_path / "wide.npz", scipy.sparse.csr_array(np.eye(4)))
    known = (ColumnEncoding("", "matrix", 3),)
    what = refused(lambda: scan_source(str(tmp_path / "wide.npz"), (), None, tmp_path, 4, None, known))
    assert what.endswith("wide.npz has 4 columns, and the model has 3")
    chosen = scan_source(str(tmp_path / "wide.npz"), ("0", "2-3"), None, tmp_path).encoding.again(EncodingRules())
    again = scan_source(str(tmp_path / "wide.npz"), (), None, tmp_path, None, None, chosen)
    assert (list(again.columns), again.nonzeros) == (["0", "2", "3"], (1, 1, 1))
    _check_columns("m", KMeansConfig.model_construct(data="new.npz", columns=("0", "2-3")), chosen)
    with pytest.raises(ConfigError, match="is not what the model 'm' was trained with"):
        _check_columns("m", KMeansConfig.model_construct(data="new.npz", columns=("0", "2")), chosen)
    table = refused(lambda: scan_source(str(tmp_path / "new.svm"), (), None, tmp_path, 3, None, (ColumnEncoding("a"),)))
    assert table.endswith("new.svm is a sparse matrix, and the rows of the model were a table")


def test_models_that_are_not_fit(vertical_world: World, tmp_path: Path) -> None:
    world = vertical_world.copied(tmp_path / "world")
    config = world.configs["payco"]

    def with_job(**job: Any) -> str:
        return refused(lambda: check_run(changed(config, kmeans=job)))

    assert with_job(predict={"model": "none"}).startswith("the model 'none' is not trained here: run `veilmeans train`")
    assert with_job(clusters=2).startswith("kmeans.clusters is 2, and the model 'test' has 3")
    assert with_job(normalise={"method": "zscore"}).startswith("kmeans.normalise.method is zscore, and the model")
    assert with_job(columns=["amount"]).startswith("kmeans.columns is not what the model 'test' was trained with")
    assert with_job(one_hot=["colour", "amount"]).startswith("kmeans.one_hot is not what the model 'test'")
    saved = world.trained["payco"].run_folder / "finished.json"
    content = json.loads(saved.read_text())
    del content["encoding"]
    saved.write_text(json.dumps(content))
    assert "was trained by an older veilmeans" in with_job()
    content["job"]["predict"] = {"model": "first", "margin": 1.0}
    saved.write_text(json.dumps(content))
    assert "is a prediction itself" in with_job()


def test_terms_name_the_model(vertical_world: World, tmp_path: Path) -> None:
    """Another model's name, or a training that was not the peers', is told in the handshake; local fields are not."""
    world = vertical_world.copied(tmp_path / "world")
    config = world.configs["payco"]
    folder = config.storage / "runs"
    shutil.copytree(folder / "test", folder / "other")
    said = check_run(config).terms["shop"]
    other = check_run(changed(config, kmeans={"predict": {"model": "other"}})).terms["shop"]
    assert first_difference(said, other, "shop") == "kmeans.predict.model is test here and other at shop"
    peers = check_run(world.configs["shop"]).terms["payco"]
    assert first_difference(said, peers, "shop") is None
    own = changed(config, kmeans={"max_iter": 9, "tol": 1.0, "predict": {"outside": "clip"}})
    assert first_difference(check_run(own).terms["shop"], peers, "shop") is None
    bound = folder / "test" / "bound.shop-to-payco.json"
    bound.write_text(json.dumps(json.loads(bound.read_text()) | {"binding": "another"}))
    assert "training of the model is" in (first_difference(check_run(config).terms["shop"], peers, "shop") or "")


def test_bindings_differ_with_model_and_rows(vertical_world: World, tmp_path: Path) -> None:
    config = vertical_world.configs["payco"]
    other = rewritten(vertical_world, tmp_path, with_column(new_rows(), "amount", [1.0, 2, 3, 4, 5, 6, 7]))
    found = {check_run(each).binding for each in (config, other, changed(config, run="again"))}
    assert len(found) == 2  # the run's name goes into the seed beside the binding
    assert check_run(vertical_world.trained["payco"]).binding not in found
    world = vertical_world.copied(tmp_path / "world")
    assert check_run(world.configs["payco"]).binding in found
    (share,) = (world.trained["payco"].run_folder / "centres" / "2").glob("*.arrow")
    share.write_bytes(share.read_bytes()[::-1])
    assert check_run(world.configs["payco"]).binding not in found
    (world.trained["payco"].run_folder / "checkpoints" / "2.arrow").unlink()
    assert "2.arrow cannot be read: restore it" in refused(lambda: check_run(world.configs["payco"]))


def test_each_command_has_its_own_configuration(vertical_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    trains, predicts = vertical_world.trained["payco"], vertical_world.configs["payco"]
    assert refused(lambda: run_train(predicts)).startswith("run 'new' predicts with the model 'test'")
    assert "run `veilmeans train`" in refused(lambda: run_predict(trains))
    assert job_digest(trains) != job_digest(predicts)
    assert store_iterations(changed(predicts, triples={"iterations": 5})) == 1
    fix_costs(monkeypatch)
    plan = shown(show_plan(plan_train(predicts)))
    assert "3 clusters, new rows in the clusters of 'test'" in plan
    assert [word in plan for word in ("assign", "update", "one bit", "≤")] == [True, False, False, False]


def test_the_planner_looks_at_distances_only(vertical_world: World) -> None:
    """Wide and sparse rows go under encryption whatever an update would cost, and then no masked matrix is sent."""
    wide = {"features": {"payco": 100_000, "shop": 1}, "rows": 10**6, "sparse": {"payco": {"nonzeros": 20}}}
    config = changed(vertical_world.configs["payco"], kmeans=wide, engine={"rows_per_shard": 1000})
    found = select_all_engines(config, [COSTS])
    assert {name: (each.distance, each.update) for name, each in found.items()} == {
        "payco": ("he", "he"),
        "shop": ("beaver", "beaver"),
    }
    asked = changed(config, kmeans={"products": {"payco": {"distance": "he", "update": "beaver"}, "shop": "beaver"}})
    assert kmeans_steps(asked).engines.masked == {1}


def test_the_schema(vertical_world: World) -> None:
    config = vertical_world.configs["payco"]
    one = changed(config, kmeans={"rows": 1, "init": {"indices": [5, 6, 7]}})
    assert store_requirements(one).rows == 1
    assert kmeans_steps(one).predicts
    for job, what in (
        ({"reveal": {"centroids": ["payco"]}}, "reveal.centroids: must be empty"),
        ({"reveal": {"inertia": ["payco"]}}, "reveal.inertia: must be empty"),
        ({"predict": {"model": "new"}}, "kmeans.predict.model: must differ from run"),
        ({"predict": {"model": "a/b"}}, "must be 1 to 80 letters"),
        ({"predict": {"margin": -1}}, "greater than or equal to 0"),
    ):
        with pytest.raises(ValueError, match=what):
            changed(config, kmeans=job)
    assert refused(lambda: kmeans_steps(changed(config, kmeans={"predict": {"margin": 1e9}}))).startswith(
        "kmeans.predict.margin is too large"
    )
