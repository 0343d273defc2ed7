"""Predictions that do not fit their model, and what parties must agree on about it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
import scipy.sparse

from support.fixed_values import COSTS
from support.prediction_world import GAP, PredictionWorld, make_prediction_world, new_tables, printed
from support.worlds import changed_config
from veilmeans.io.sources.column_encoding import ColumnEncoding, EncodingRules
from veilmeans.io.sources.encode import encode_source
from veilmeans.io.sources.scaling import Scaling
from veilmeans.io.sources.scan import scan_source
from veilmeans.io.storage.checkpoints import centroids
from veilmeans.io.storage.encoded_shards import read_rows
from veilmeans.pipelines.configure.data_summary import show_data
from veilmeans.pipelines.planning.engine_selection import select_all_engines
from veilmeans.pipelines.planning.job_plan import plan_train
from veilmeans.pipelines.predict import run_predict
from veilmeans.pipelines.prepare import prepare_data
from veilmeans.pipelines.reporting.plan_table import show_plan
from veilmeans.pipelines.session.kmeans_from_config import job_digest, kmeans_steps, store_iterations, traced_job
from veilmeans.pipelines.session.kmeans_run import check_run
from veilmeans.pipelines.session.own_data import scan_data
from veilmeans.pipelines.session.trained_model import _check_columns, load_model
from veilmeans.pipelines.train import run_train
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import ConfigError, InputError, StorageError, VeilmeansError
from veilmeans.schemas.handshake_terms import first_difference
from veilmeans.schemas.kmeans_config import KMeansConfig

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> PredictionWorld:
    return make_prediction_world(tmp_path_factory.mktemp("trained") / "world")


def refused(job: Callable[[], object], kind: type[VeilmeansError], *named: str) -> None:
    """Check the class of an error, and that its sentence names these."""
    with pytest.raises(kind) as error:
        job()
    assert [name for name in named if name not in error.value.sentence] == [], error.value.sentence


def with_rows(world: PredictionWorld, folder: Path, table: pa.Table, **job: Any) -> JobConfig:
    """payco's prediction of other rows."""
    pa.csv.write_csv(table, folder / "other.csv")
    return changed_config(world.prediction["payco"], kmeans={"data": str(folder / "other.csv"), **job})


def with_column(table: pa.Table, name: str, values: Any) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, [values])


def test_columns_and_categories_are_the_models(world: PredictionWorld, tmp_path: Path) -> None:
    table = new_tables()["payco"]
    renamed = with_rows(world, tmp_path, table.rename_columns(["id", "colour", "sum"]))
    refused(lambda: prepare_data(renamed), InputError, "other.csv", "'amount'")
    unknown = with_rows(world, tmp_path, with_column(table, "colour", ["mauve", *["red"] * 6]))
    refused(lambda: prepare_data(unknown), InputError, "other.csv", "row 1", "'colour'")
    assert "7 rows, 4 columns" in prepare_data(changed_config(unknown, kmeans={"unseen": "ignore"}))
    few = with_rows(world, tmp_path, with_column(table, "colour", ["red"] * 7), rows=7)
    assert "colour=blue, colour=green, colour=red, amount" in prepare_data(few)
    model = load_model(few)
    assert "blue, green, red" in printed(show_data(few, scan_data(few, model), model))


def test_a_value_beyond_the_margin_is_refused_or_clipped(world: PredictionWorld, tmp_path: Path) -> None:
    """The trained amounts have a width of about 22: 60 is more than one width beyond them."""
    table = with_column(new_tables()["payco"], "amount", [1.0, 2, 3, 60, 5, 6, 7])
    far = with_rows(world, tmp_path, table)
    named = ("other.csv", "row 4", "'amount'", "kmeans.predict.margin", "out_of_range")
    refused(lambda: prepare_data(far), InputError, *named)
    for predict in ({"out_of_range": "clip"}, {"margin": 3.0}):
        assert "7 rows" in prepare_data(changed_config(far, kmeans={"predict": predict}))


def test_one_row_with_a_gap_is_prepared(world: PredictionWorld, tmp_path: Path) -> None:
    one = with_rows(world, tmp_path, new_tables()["payco"].slice(GAP, 1), rows=1)
    assert "1 rows, 4 columns" in prepare_data(one)


def test_svmlight_indices_count_from_where_the_models_did(tmp_path: Path) -> None:
    texts = {"from0": "1 0:1 2:2\n", "from1": "1 1:1 3:2\n", "new": "1 1:5\n", "other": "1 0:5\n"}
    for name, text in texts.items():
        (tmp_path / f"{name}.svm").write_text(text)

    def columns(model: str, new: str) -> list[int]:
        known = scan_source(str(tmp_path / f"{model}.svm"), (), None, 3).encoding.for_new_rows(EncodingRules())
        scan = scan_source(str(tmp_path / f"{new}.svm"), (), None, 3, model_fields=known)
        assert scan.fields == known
        prepared = encode_source(scan, Scaling((0.0,) * 3, (1.0,) * 3), (0, 9), 1, tmp_path)
        return read_rows(prepared.folder, 0).indices.tolist()

    assert [columns("from0", "new"), columns("from1", "new"), columns("from0", "other")] == [[1], [0], [0]]
    refused(lambda: columns("from1", "other"), InputError, "other.svm", "line 1")
    file, table = str(tmp_path / "new.svm"), (ColumnEncoding("a"),)
    refused(lambda: scan_source(file, (), None, 3, model_fields=table), InputError, "new.svm")


def test_a_matrix_must_be_as_wide_as_the_models(tmp_path: Path) -> None:
    file = str(tmp_path / "wide.npz")
    scipy.sparse.save_npz(file, scipy.sparse.csr_array(np.eye(4)))
    known = (ColumnEncoding("", "matrix", 3),)
    refused(lambda: scan_source(file, (), None, 4, model_fields=known), InputError, "wide.npz", "4", "3")
    chosen = scan_source(file, ("0", "2-3"), None).encoding.for_new_rows(EncodingRules())
    again = scan_source(file, (), None, model_fields=chosen)
    assert (list(again.columns), again.nonzeros) == (["0", "2", "3"], (1, 1, 1))
    _check_columns("m", KMeansConfig.model_construct(data="new.npz", columns=("0", "2-3")), chosen)
    other = KMeansConfig.model_construct(data="new.npz", columns=("0", "2"))
    refused(lambda: _check_columns("m", other, chosen), ConfigError, "kmeans.columns", "'m'")


@pytest.mark.parametrize(
    ("job", "named"),
    [
        ({"predict": {"model": "none"}}, "'none'"),
        ({"clusters": 2}, "kmeans.clusters"),
        ({"normalise": {"method": "zscore"}}, "kmeans.normalise.method"),
        ({"columns": ["amount"]}, "kmeans.columns"),
        ({"one_hot": ["colour", "amount"]}, "kmeans.one_hot"),
    ],
)
def test_a_job_that_does_not_fit_the_model_is_refused(world: PredictionWorld, job: dict[str, Any], named: str) -> None:
    refused(lambda: check_run(changed_config(world.prediction["payco"], kmeans=job)), VeilmeansError, named)


def test_a_model_that_cannot_predict_is_refused(world: PredictionWorld, tmp_path: Path) -> None:
    """A model of an older version has no encoding; a prediction is no model."""
    copied = world.copied(tmp_path / "world")
    config, saved = copied.prediction["payco"], copied.trained.run_folder("payco").finished
    content = json.loads(saved.read_text())
    del content["encoding"]
    saved.write_text(json.dumps(content))
    refused(lambda: check_run(config), VeilmeansError, "'test'", "older")
    content["job"]["predict.model"] = "first"
    saved.write_text(json.dumps(content))
    refused(lambda: check_run(config), VeilmeansError, "'test'", "prediction")


def test_the_handshake_compares_the_model_and_its_training(world: PredictionWorld, tmp_path: Path) -> None:
    """Another model's name, or a training that was not the peers', is named; local fields are not compared."""
    copied = world.copied(tmp_path / "world")
    config, folder = copied.prediction["payco"], copied.trained.run_folder("payco")
    shutil.copytree(folder.path, config.storage_folder.run("other").path)
    own = check_run(config).terms["shop"]
    other = check_run(changed_config(config, kmeans={"predict": {"model": "other"}})).terms["shop"]
    assert (first_difference(own, other, "shop") or "").startswith("kmeans.predict.model")
    peers = check_run(copied.prediction["shop"]).terms["payco"]
    assert first_difference(own, peers, "shop") is None
    local = changed_config(config, kmeans={"max_iter": 9, "tol": 1.0, "predict": {"out_of_range": "clip"}})
    assert first_difference(check_run(local).terms["shop"], peers, "shop") is None
    bound = folder.terms("shop", "payco")
    bound.write_text(json.dumps(json.loads(bound.read_text()) | {"binding": "another"}))
    assert "training" in (first_difference(check_run(config).terms["shop"], peers, "shop") or "")


def test_bindings_differ_with_model_and_rows(world: PredictionWorld, tmp_path: Path) -> None:
    config = world.prediction["payco"]
    other = with_rows(world, tmp_path, with_column(new_tables()["payco"], "amount", [1.0, 2, 3, 4, 5, 6, 7]))
    bindings = {check_run(each).binding for each in (config, other, changed_config(config, run="again"))}
    assert len(bindings) == 2  # the run's name goes into the seed beside the binding
    assert check_run(world.trained["payco"]).binding not in bindings
    copied = world.copied(tmp_path / "world")
    config, folder = copied.prediction["payco"], copied.trained.run_folder("payco")
    assert check_run(config).binding in bindings
    (share,) = folder.shares(centroids(2)).glob("*.arrow")
    share.write_bytes(share.read_bytes()[::-1])
    assert check_run(config).binding not in bindings
    folder.checkpoint(2).unlink()
    refused(lambda: check_run(config), StorageError, str(folder.checkpoint(2)))


def test_each_command_has_its_own_configuration(world: PredictionWorld) -> None:
    trains, predicts = world.trained["payco"], world.prediction["payco"]
    refused(lambda: run_train(predicts), ConfigError, "'new'", "veilmeans predict")
    refused(lambda: run_predict(trains), ConfigError, "'test'", "veilmeans train")
    assert job_digest(trains) != job_digest(predicts)
    assert store_iterations(changed_config(predicts, triples={"iterations": 5})) == 1
    plan = printed(show_plan(plan_train(predicts)))
    assert "3 clusters" in plan
    assert [word in plan for word in ("assign", "update", "one bit", "≤")] == [True, False, False, False]


def test_engines_are_selected_by_distances_only(world: PredictionWorld) -> None:
    """Wide and sparse rows go under encryption whatever an update would cost, and then no masked matrix is sent."""
    wide = {"features": {"payco": 100_000, "shop": 1}, "rows": 10**6, "sparse": {"payco": {"nonzeros": 20}}}
    config = changed_config(
        world.prediction["payco"], kmeans={**wide, "products": "auto"}, beam={"rows_per_shard": 1000}
    )
    selected = select_all_engines(config, [COSTS])
    assert {name: (each.distance, each.update) for name, each in selected.items()} == {
        "payco": ("he", "he"),
        "shop": ("beaver", "beaver"),
    }
    products = {"payco": {"distance": "he", "update": "beaver"}, "shop": "beaver"}
    assert kmeans_steps(changed_config(config, kmeans={"products": products})).engines.masked == {1}


@pytest.mark.parametrize(
    ("job", "field"),
    [
        ({"reveal": {"centroids": ["payco"]}}, r"reveal\.centroids"),
        ({"reveal": {"inertia": ["payco"]}}, r"reveal\.inertia"),
        ({"predict": {"model": "new"}}, r"kmeans\.predict\.model"),
        ({"predict": {"model": "a/b"}}, r"predict\.model"),
        ({"predict": {"margin": -1}}, r"predict\.margin"),
    ],
)
def test_fields_that_no_prediction_can_have_are_refused(
    world: PredictionWorld, job: dict[str, Any], field: str
) -> None:
    with pytest.raises(ValueError, match=field):
        changed_config(world.prediction["payco"], kmeans=job)


def test_a_prediction_may_have_one_row_and_its_margin_has_a_limit(world: PredictionWorld) -> None:
    config = world.prediction["payco"]
    one = changed_config(config, kmeans={"rows": 1, "init": {"indices": [5, 6, 7]}})
    assert traced_job(one).rows == 1
    assert kmeans_steps(one).predicts
    far = changed_config(config, kmeans={"predict": {"margin": 1e9}})
    refused(lambda: kmeans_steps(far), ConfigError, "kmeans.predict.margin")
