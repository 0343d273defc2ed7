"""`VeilKMeans` with real party processes: a vertical and a horizontal fit, and mistakes that are refused before one."""

import pickle
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.exceptions import NotFittedError

from veilmeans import VeilKMeans
from veilmeans.schemas.arrays import Real
from veilmeans.schemas.errors import VeilmeansError
from veilmeans.transforms.kmeans.plaintext_kmeans import PlaintextIteration, lloyd, nearest

pytestmark = pytest.mark.processes
ROWS, K, ITERATIONS = 90, 3, 4
START = [5, 17, 40]
CARDS = ["amex", "giro", "visa"]
STEP = 2.0**-15
"""Fixed-point numbers have 20 fractional bits; truncations may change some of the lowest."""


@dataclass(frozen=True)
class Fitted:
    """An estimator, and plaintext Lloyd from the same first centroids on the same normalised rows."""

    model: VeilKMeans
    rows: Real
    low: Real
    width: Real
    steps: list[PlaintextIteration]

    @property
    def labels(self) -> Any:
        return nearest(self.rows, self.steps[-1].centroids)

    def nearest(self, values: Real) -> Any:
        """The cluster of rows in original units, by the opened centroids."""
        centroids = (self.model.cluster_centers_ - self.low) / self.width
        return nearest((values - self.low) / self.width, centroids)


def values(seed: int, rows: int = ROWS, columns: int = 3) -> Real:
    rng = np.random.default_rng(seed)
    kinds = np.random.default_rng(1).integers(0, K, ROWS)[:rows]
    return np.array([10.0, 25.0, 45.0])[kinds][:, None] * np.arange(1, columns + 1) + rng.normal(0, 4, (rows, columns))


def fitted(model: VeilKMeans, data: Any, joint: Real, hot: int) -> Fitted:
    """Fit an estimator and run plaintext Lloyd. `hot`: the number of one-hot columns, which come first."""
    low, high = joint.min(axis=0), joint.max(axis=0)
    low[:hot], high[:hot] = 0, 1
    rows = (joint - low) / (high - low)
    steps = lloyd(lambda: [rows], rows[START], ITERATIONS, model.tol)
    return Fitted(model.fit(data), rows, low, high - low, steps)


def frames(numbers: Real) -> dict[str, Any]:
    """A bank's pandas frame with text and an index, and a shop's Arrow table."""
    cards = np.array(CARDS)[np.arange(len(numbers)) % 3]
    bank = pd.DataFrame({"card": cards, "paid": numbers[:, 0]}, index=np.arange(len(numbers)) * 3)
    return {"bank": bank, "shop": pa.table({"visits": numbers[:, 1], "spent": numbers[:, 2]})}


def joined(numbers: Real) -> Real:
    return np.hstack([np.eye(3)[np.arange(len(numbers)) % 3], numbers])


@pytest.fixture(scope="module")
def vertical(tmp_path_factory: pytest.TempPathFactory) -> Fitted:
    folder = tmp_path_factory.mktemp("vertical")
    model = VeilKMeans(K, init=START, max_iter=ITERATIONS, tol=0, outliers=7, scores=True, folder=folder)
    return fitted(model, frames(values(2)), joined(values(2)), 3)


@pytest.fixture(scope="module")
def horizontal() -> Fitted:
    model = VeilKMeans(K, layout="horizontal", init=START, max_iter=ITERATIONS, outliers=0.1, dealer=True, verbose=1)
    data = {"north": values(3)[:50], "south": pd.DataFrame(values(3)[50:])}
    return fitted(model, data, values(3), 0)


def check(one: Fitted) -> None:
    model = one.model
    np.testing.assert_array_equal(model.labels_, one.labels)
    assert model.labels_.dtype == np.int32
    centroids = (model.cluster_centers_ - one.low) / one.width
    np.testing.assert_allclose(centroids, one.steps[-1].centroids, atol=STEP)
    assert model.n_iter_ == len(one.steps)
    assert model.inertia_ == pytest.approx(one.steps[-1].inertia, abs=STEP * ROWS)


def test_a_vertical_fit_finds_what_plaintext_lloyd_finds(vertical: Fitted) -> None:
    check(vertical)
    cards = [f"bank.card={card}" for card in CARDS]
    assert vertical.model.columns_ == (*cards, "bank.paid", "shop.visits", "shop.spent")
    assert list(vertical.model.feature_names_in_) == ["bank.card", "bank.paid", "shop.visits", "shop.spent"]
    assert vertical.model.n_features_in_ == 4


def test_a_vertical_fit_finds_what_scikit_learn_finds(vertical: Fitted) -> None:
    plain = KMeans(K, init=vertical.rows[START], n_init=1, max_iter=ITERATIONS, tol=0).fit(vertical.rows)
    assert np.mean(plain.labels_ == vertical.nearest(joined(values(2)))) == 1
    centroids = (vertical.model.cluster_centers_ - vertical.low) / vertical.width
    np.testing.assert_allclose(centroids, plain.cluster_centers_, atol=STEP)


def test_a_horizontal_fit_finds_what_plaintext_lloyd_finds(horizontal: Fitted) -> None:
    check(horizontal)
    assert horizontal.model.columns_ == ("0", "1", "2")
    assert not hasattr(horizontal.model, "feature_names_in_")


def test_new_rows_go_to_the_nearest_centroid(vertical: Fitted) -> None:
    new = values(7, 10) * [[0.7], [1.4], *[[1.0]] * 8]
    labels = vertical.model.predict(frames(new))
    np.testing.assert_array_equal(labels, vertical.nearest(joined(new)))
    assert labels.dtype == np.int32
    assert not (vertical.model.run_folder("bank", "predict-1") / "centroids.parquet").exists()


def test_outliers_are_the_rows_farthest_from_their_centroids(vertical: Fitted, horizontal: Fitted) -> None:
    for one, count in ((vertical, 7), (horizontal, ROWS // 10)):
        squares = ((one.rows - one.steps[-1].centroids[one.labels]) ** 2).sum(axis=1)
        assert np.flatnonzero(one.model.outliers_).tolist() == np.sort(np.argsort(-squares)[:count]).tolist()
        if one.model.scores:
            np.testing.assert_allclose(one.model.scores_, squares, atol=STEP)


def test_a_prediction_of_the_trained_rows_finds_their_clusters_and_scores(vertical: Fitted) -> None:
    scores = vertical.model.score_samples(frames(values(2)))
    np.testing.assert_allclose(-scores, vertical.model.scores_, atol=2.0**-19)
    np.testing.assert_array_equal(vertical.model._read_labels("predict-2"), vertical.model.labels_)


def test_scores_that_may_not_be_opened_are_refused(horizontal: Fitted) -> None:
    for name in ("score_samples", "score", "transform"):
        assert not hasattr(horizontal.model, name)
        with pytest.raises(AttributeError, match=name):
            getattr(horizontal.model, name)(values(3))


def test_distances_to_all_centroids_are_those_of_plaintext(vertical: Fitted, horizontal: Fitted) -> None:
    opening = copy(horizontal.model)
    opening.scores = True
    for one, model, data in ((vertical, vertical.model, frames(values(2))), (horizontal, opening, values(3))):
        differences = one.rows[:, None] - one.steps[-1].centroids
        np.testing.assert_allclose(model.transform(data) ** 2, (differences**2).sum(axis=2), atol=STEP)


def test_the_score_is_the_sum_of_the_rows_scores(vertical: Fitted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VeilKMeans, "score_samples", lambda _, rows: -np.arange(len(rows)))
    assert vertical.model.score(np.zeros((4, 2))) == -6.0


def test_new_rows_of_each_party_go_to_the_nearest_centroid(horizontal: Fitted) -> None:
    """A copy works as long as the original exists; parties may be named in any order."""
    copied = pickle.loads(pickle.dumps(horizontal.model))  # noqa: S301
    new = values(8, 12)
    labels = copied.predict({"south": new[7:], "north": scipy.sparse.csr_array(new[:7])})
    np.testing.assert_array_equal(labels, horizontal.nearest(new))


def test_a_fit_has_reports_and_folders_of_the_parties(vertical: Fitted) -> None:
    model = vertical.model
    assert model.parties_ == ("bank", "shop") == tuple(model.reports_)
    assert all(report["iterations"][-1]["done"] == ITERATIONS for report in model.reports_.values())
    assert all(
        sum(stage.get("bytes_sent", 0) for stage in report["stages"].values()) for report in model.reports_.values()
    )
    folder = model.run_folder("shop")
    assert folder.is_relative_to(model.folder / "fit-1" / "shop")
    assert (folder / "result.json").exists()


def test_each_party_has_only_its_own_data_and_keys(vertical: Fitted) -> None:
    home = vertical.model.folder / "fit-1"
    of_stores = "files.key"  # for the tags of a party's own files
    assert sorted(file.name for file in home.rglob("*.key") if file.name != of_stores) == ["bank.key", "shop.key"]
    assert pa.parquet.read_schema(home / "shop" / "data.parquet").names == ["visits", "spent"]
    opened = pa.parquet.read_schema(vertical.model.run_folder("shop") / "centroids.parquet").names
    assert opened == ["cluster", "visits", "spent"]


def test_a_clone_is_unfitted_and_has_the_same_parameters(vertical: Fitted) -> None:
    copied = clone(vertical.model)
    assert copied.get_params() == vertical.model.get_params()
    with pytest.raises(NotFittedError):
        copied.predict(frames(values(2)))
    again = pickle.loads(pickle.dumps(VeilKMeans(5, parties=("a", "b", "c"))))  # noqa: S301
    assert again.get_params() == VeilKMeans(5, parties=("a", "b", "c")).get_params()


def test_a_party_s_own_error_reaches_the_caller() -> None:
    """A bound that leaves no room for products is refused by the parties, not by the estimator."""
    with pytest.raises(VeilmeansError, match=r"(party_a|party_b) .*kmeans\.normalise\.bound"):
        VeilKMeans(2, normalise="none", bound=2.0**50).fit(values(2))


FRAMES = frames(values(2))


@pytest.mark.parametrize(
    ("parameters", "data", "named"),
    [
        ({}, np.full((9, 4), np.nan), "NaN"),
        ({}, np.full((9, 4), 1j), "Complex data"),
        ({}, np.ones(9), "2D array"),
        ({}, np.ones((9, 1)), "n_features=1"),
        ({"layout": "horizontal", "n_clusters": 1}, np.ones((1, 9)), "n_samples=1"),
        ({}, np.ones((2, 9)), "n_samples=2 .*n_clusters=3"),
        ({}, {"bank": FRAMES["bank"]}, "bank"),
        ({}, {**FRAMES, "shop": FRAMES["shop"].slice(1)}, "bank .*90 .*shop 89"),
        ({}, {**FRAMES, "bank": FRAMES["bank"].astype({"paid": complex})}, "data of bank"),
        ({}, {"bank": FRAMES["bank"], "no shop": FRAMES["shop"]}, "'no shop'"),
        ({"layout": "diagonal"}, FRAMES, "layout is 'diagonal'"),
        ({"layout": "horizontal"}, FRAMES, "shop .*'visits'.*'card'"),
        ({"n_clusters": 0}, FRAMES, "n_clusters is 0"),
        ({"init": "k-means"}, FRAMES, "init is 'k-means'"),
        ({"n_init": 0}, FRAMES, "n_init is 0"),
        ({"init": [1, 2]}, FRAMES, r"init\.indices"),
        ({"max_iter": 0}, FRAMES, r"kmeans\.max_iter"),
        ({"tol": -1}, FRAMES, r"kmeans\.tol"),
        ({"normalise": "none"}, FRAMES, r"kmeans\.normalise\.bound"),
        ({"products": "magic"}, FRAMES, r"kmeans\.products"),
        ({"random_state": -1}, FRAMES, r"kmeans\.init\.seed"),
        ({"parties": ("alone",)}, np.ones((9, 4)), "'alone'"),
    ],
)
def test_mistakes_are_refused_before_a_process_starts(parameters: dict[str, Any], data: Any, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        VeilKMeans(**{"n_clusters": 3, **parameters}).fit(data)


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
@pytest.mark.parametrize(
    ("data", "named"),
    [
        ({"bank": FRAMES["bank"]}, "bank, shop"),
        ({**FRAMES, "shop": FRAMES["shop"].select(["spent", "visits"])}, "shop .*'spent'"),
        ({**FRAMES, "shop": FRAMES["shop"].select(["visits"])}, "shop has 1"),
        (np.ones((3, 5)), "X has 5 features"),
    ],
)
def test_new_rows_need_the_columns_of_the_fit(vertical: Fitted, data: Any, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        vertical.model.predict(data)


def test_centroids_of_few_rows_are_nan() -> None:
    rows = np.concatenate([values(3, 40), [[400.0, 1.0, 3.0]]])
    model = VeilKMeans(3, init=[0, 1, 40], minimum_size=2, max_iter=2, random_state=1).fit(rows)
    withheld = np.isnan(model.cluster_centers_).all(axis=1)
    assert withheld[2]
    assert withheld.sum() == 2  # the next larger one's, which would reveal it
    with pytest.raises(ValueError, match=r"reveal\.scores"):
        VeilKMeans(3, minimum_size=2, scores=True).fit(rows)
