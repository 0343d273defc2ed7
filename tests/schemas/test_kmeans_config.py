"""The section `kmeans` of a configuration: read, checked; a mistake is refused with the field."""

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from support.config_text import Raw, changed, gateway, horizontal, refusal, written
from support.parties import write_config
from veilmeans.schemas.config import load_config
from veilmeans.schemas.kmeans_config import REVEALED, NormaliseConfig


def vertical() -> Raw:
    """The configuration with columns of both parties."""
    return gateway()


@pytest.mark.parametrize("make", [vertical, horizontal])
def test_a_job_is_read(tmp_path: Path, make: Callable[[], Raw]) -> None:
    config = load_config(written(tmp_path, make()))
    job = config.required_kmeans
    assert job.layout == make.__name__
    assert job.vertical == (make is vertical)
    assert (job.command, job.total_rows) == ("train", 100)
    assert job.data == str(tmp_path.resolve() / "data.csv")
    assert (job.max_iter, job.tol, job.iterations_per_pipeline, job.drop_bits) == (10, 1e-4, None, None)
    assert (job.init.method, job.init.seed, job.init.indices) == ("indices", 0, None)
    assert job.reveal.model_dump() == {
        **dict.fromkeys(REVEALED, ()),
        "columns": "own",
        "contributions": "own",
        "minimum_size": 0,
    }
    assert (job.final_assignment, job.outliers) == (True, None)
    assert load_config(write_config(config, tmp_path / "again.yaml")) == config
    assert pickle.loads(pickle.dumps(config)) == config  # noqa: S301


def test_the_declared_shape_is_this_partys(tmp_path: Path) -> None:
    assert load_config(written(tmp_path, vertical())).declared_shape == (100, 2)
    assert load_config(written(tmp_path, horizontal())).declared_shape == (60, 3)


def test_data_on_another_filesystem_keep_their_address(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, changed(vertical(), kmeans__data="gs://payco/*.parquet")))
    assert config.required_kmeans.data == "gs://payco/*.parquet"


@pytest.mark.parametrize(
    ("normalise", "interval"),
    [
        ({}, (0, 1)),
        ({"bound": 1}, (0, 1)),
        ({"ranges": {"a": [-5, 5]}}, (0, 1)),
        ({"method": "zscore"}, (-16, 16)),
        ({"method": "zscore", "bound": 8}, (-8, 8)),
        ({"method": "none", "bound": 0.5}, (-0.5, 0.5)),
    ],
    ids=str,
)
def test_normalised_values_lie_in_a_public_interval(normalise: Raw, interval: tuple[float, float]) -> None:
    assert NormaliseConfig.model_validate(normalise).interval == interval


@pytest.mark.parametrize(
    "fields",
    [
        {"clusters": 100},
        {"clusters": 1},
        {"init": {"indices": [99, 0, 60, 59]}},
        {"init": {"method": "local"}},
        {"init": {"method": "random", "seed": 2**63 - 1}},
        {"drop_bits": 0},
        {"tol": 0},
        {"categories": {"a": ["x", 7, True]}, "multi_hot": {"b": 9}, "unseen": "ignore", "missing": "mean"},
        {"reveal": {"assignments": ["shop"], "centroids": ["payco", "shop"], "inertia": ["payco"], "columns": "all"}},
    ],
    ids=str,
)
@pytest.mark.parametrize("make", [vertical, horizontal])
def test_extreme_values_are_read(tmp_path: Path, make: Callable[[], Raw], fields: Raw) -> None:
    raw = make()
    raw["kmeans"] |= fields
    assert load_config(written(tmp_path, raw)).kmeans


VERTICAL: list[tuple[Raw, str]] = [
    ({"layout": None}, "layout"),
    ({"layout": "diagonal"}, "layout"),
    ({"rows": None}, "rows"),
    ({"rows": "many"}, "rows"),
    ({"rows": 0}, "rows"),
    ({"rows": {"payco": 60, "shop": 40}}, "rows"),
    ({"features": None}, "features"),
    ({"features": 3}, "features"),
    ({"features": {"payco": 1}}, "features"),
    ({"features": {"payco": 1, "shop": 0}}, "features"),
    ({"features": {"payco": 1, "shop": 1, "notary": 1}}, "features"),
    ({"clusters": None}, "clusters"),
    ({"clusters": 0}, "clusters"),
    ({"clusters": 1025}, "clusters"),
    ({"clusters": 101}, "clusters"),
    ({"max_iter": 0}, "max_iter"),
    ({"tol": -1}, "tol"),
    ({"tol": float("nan")}, "tol"),
    ({"iterations_per_pipeline": 0}, "iterations_per_pipeline"),
    ({"iterations_per_pipeline": 101}, "iterations_per_pipeline"),
    ({"drop_bits": -1}, "drop_bits"),
    ({"drop_bits": 33}, "drop_bits"),
    ({"assignment": "all"}, "assignment"),
    ({"assignment": "pairs", "clusters": 9}, "assignment"),
    ({"columns": ["a", "b", "a"]}, "columns"),
    ({"categories": {"a": []}}, "categories.a"),
    ({"categories": {"a": ["x", "y", "x"]}}, "categories.a"),
    ({"categories": {"a": [1, "1"]}}, "categories.a"),
    ({"categories": {"a": [1.5]}}, "categories.a.0"),
    ({"multi_hot": {"a": 0}}, "multi_hot.a"),
    ({"missing": "guess"}, "missing"),
    ({"unseen": "guess"}, "unseen"),
    ({"colour": "red"}, "colour"),
    ({"init": {"method": "guess"}}, "init.method"),
    ({"init": {"seed": -1}}, "init.seed"),
    ({"init": {"seed": 2**63}}, "init.seed"),
    ({"init": {"colour": 1}}, "init.colour"),
    ({"init": {"indices": [1, 2, 3, -1]}}, "init.indices.3"),
    ({"init": {"indices": [1, 2, 3, 3]}}, "init.indices"),
    ({"init": {"method": "local", "indices": [1, 2, 3, 4]}}, "init.indices"),
    ({"init": {"method": "random", "indices": [1, 2, 3, 4]}}, "init.indices"),
    ({"init": {"indices": []}}, "init.indices"),
    ({"init": {"indices": [1, 2, 3, 4, 5]}}, "init.indices"),
    ({"init": {"indices": [0, 1, 100, 2]}}, "init.indices"),
    ({"normalise": {"method": "log"}}, "normalise.method"),
    ({"normalise": {"colour": 1}}, "normalise.colour"),
    ({"normalise": {"aggregate": True}}, "normalise.aggregate"),
    ({"normalise": {"method": "none"}}, "normalise.bound"),
    ({"normalise": {"method": "none", "bound": float("inf")}}, "normalise.bound"),
    ({"normalise": {"method": "zscore", "bound": float("nan")}}, "normalise.bound"),
    ({"normalise": {"bound": 2}}, "normalise.bound"),
    ({"normalise": {"method": "zscore", "ranges": {"a": [0, 1]}}}, "normalise.ranges"),
    ({"normalise": {"method": "none", "bound": 1, "ranges": {"a": [0, 1]}}}, "normalise.ranges"),
    ({"normalise": {"ranges": {"a": [0, 1], "b": [1, 1]}}}, "normalise.ranges.b"),
    ({"normalise": {"ranges": {"a": [float("nan"), 1]}}}, "normalise.ranges.a.0"),
    ({"normalise": {"ranges": {"a": [0]}}}, "normalise.ranges.a.1"),
    ({"sparse": {"bank": {"nonzeros": 2}}}, "sparse"),
    ({"sparse": {"shop": {"nonzeros": -1}}}, "sparse.shop.nonzeros"),
    ({"sparse": {"shop": {"whole": True}}}, "sparse.shop.whole"),
    ({"products": {"bank": "he"}}, "products"),
    ({"products": "fast"}, "products"),
    ({"products": {"shop": "fast"}}, "products.shop"),
    ({"products": {"shop": {"update": 1}}}, "products.shop.update"),
    ({"cipher": {"bits": 1024}}, "cipher.bits"),
    ({"cipher": {"scheme": "rot13"}}, "cipher.scheme"),
    ({"reveal": {"assignments": ["bank"]}}, "reveal.assignments"),
    ({"reveal": {"assignments": "payco"}}, "reveal.assignments"),
    ({"reveal": {"centroids": ["shop", "notary"]}}, "reveal.centroids"),
    ({"reveal": {"inertia": ["bank"]}}, "reveal.inertia"),
    ({"reveal": {"columns": "none"}}, "reveal.columns"),
    ({"reveal": {"distances": ["payco"]}}, "reveal.distances"),
    ({"reveal": {"scores": ["nobody"]}}, "reveal.scores"),
    ({"reveal": {"outliers": ["payco"]}}, "reveal.outliers"),
    ({"outliers": {}}, "outliers"),
    ({"outliers": {"count": 3}, "reveal": {"explanations": ["payco"]}}, "reveal.explanations"),
    ({"reveal": {"profiles": ["payco"]}, "final_assignment": False}, "final_assignment"),
    ({"reveal": {"scores": ["payco"], "minimum_size": 2}}, "reveal.scores"),
    ({"reveal": {"contributions": "all", "minimum_size": 2}}, "reveal.contributions"),
    ({"reveal": {"columns": "all", "minimum_size": 2}}, "reveal.columns"),
    ({"reveal": {"minimum_size": -1}}, "reveal.minimum_size"),
    ({"reveal": {"profiles": ["payco"]}, "predict": {"model": "first"}}, "reveal.profiles"),
    ({"reveal": {"profiles": ["payco"]}, "features": {"payco": 1001, "shop": 1}}, "reveal.profiles"),
    ({"label": "x", "id": "x"}, "label"),
    ({"label": "x", "columns": ["x"]}, "label"),
    ({"outliers": {"count": 3, "fraction": 0.1}}, "outliers"),
    ({"outliers": {"count": 0}}, "outliers.count"),
    ({"outliers": {"count": 100}}, "outliers.count"),
    ({"outliers": {"fraction": 1.0}}, "outliers.fraction"),
    ({"outliers": {"count": 3}, "final_assignment": False}, "final_assignment"),
    ({"reveal": {"scores": ["payco"]}, "final_assignment": False}, "final_assignment"),
    (
        {"outliers": {"count": 3, "during_training": True}, "reveal": {"inertia": ["payco"]}},
        "reveal.inertia",
    ),
    ({"starts": 0}, "starts"),
    ({"starts": 2, "init": {"indices": [0, 1, 2, 3]}}, "starts"),
    ({"starts": 2, "final_assignment": False}, "final_assignment"),
    ({"starts": 2, "outliers": {"count": 3, "during_training": True}}, "starts"),
    ({"predict": {"margin": 1}}, "predict.model"),
    ({"predict": {"model": "run-1"}}, "predict.model"),
    ({"predict": {"model": "first", "margin": -1}}, "predict.margin"),
    ({"predict": {"model": "first", "out_of_range": "ignore"}}, "predict.out_of_range"),
    ({"predict": {"model": "first"}, "reveal": {"inertia": ["payco"]}}, "reveal.inertia"),
]
HORIZONTAL: list[tuple[Raw, str]] = [
    ({"rows": 100}, "rows"),
    ({"rows": {"payco": 100}}, "rows"),
    ({"rows": {"payco": 60, "bank": 40}}, "rows"),
    ({"features": {"payco": 2, "shop": 3}}, "features"),
    ({"clusters": 101}, "clusters"),
    ({"init": {"indices": [0, 59, 60, 100]}}, "init.indices"),
    ({"one_hot": ["a"]}, "one_hot"),
    ({"normalise": {}}, "normalise"),
    ({"normalise": {"method": "zscore"}}, "normalise"),
    ({"normalise": {"aggregate": True, "ranges": {"a": [0, 1]}}}, "normalise.aggregate"),
    ({"normalise": {"aggregate": True, "method": "none", "bound": 1}}, "normalise.aggregate"),
]
REFUSED = [(vertical, *each) for each in VERTICAL] + [(horizontal, *each) for each in HORIZONTAL]


@pytest.mark.parametrize(
    ("make", "fields", "named"), REFUSED, ids=[f"{make.__name__} {fields}" for make, fields, _ in REFUSED]
)
def test_a_wrong_field_is_refused_by_name(tmp_path: Path, make: Callable[[], Raw], fields: Raw, named: str) -> None:
    raw = make()
    changed(raw["kmeans"], **fields)
    assert refusal(written(tmp_path, raw)).startswith(f"FILE: kmeans.{named}: ")


@pytest.mark.parametrize(
    "fields",
    [
        {"categories": {"a": ["x"]}, "one_hot": ["a"]},
        {"one_hot": ["a"], "multi_hot": {"a": 3}},
        {"one_hot": ["a", "a"]},
    ],
    ids=str,
)
def test_a_column_that_is_encoded_twice_is_refused(tmp_path: Path, fields: Raw) -> None:
    raw = vertical()
    raw["kmeans"] |= fields
    assert "'a'" in refusal(written(tmp_path, raw))


def test_a_job_must_be_a_mapping(tmp_path: Path) -> None:
    assert refusal(written(tmp_path, changed(vertical(), kmeans="yes"))).startswith("FILE: kmeans: ")


def test_categories_are_text_also_if_yaml_reads_numbers_and_truth_values(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, changed(vertical(), kmeans__categories={"a": ["x", 7, True]})))
    assert config.required_kmeans.categories == {"a": ("x", "7", "true")}
