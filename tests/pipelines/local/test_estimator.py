"""`VeilKMeans` with real party processes: two fits, each looked at from all sides, and what is refused before any."""

import os
import pickle
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import scipy.sparse
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.exceptions import NotFittedError

import veilmeans
from veilmeans import VeilKMeans
from veilmeans.schemas.arrays import Real
from veilmeans.schemas.errors import VeilmeansError
from veilmeans.transforms.kmeans.plaintext_kmeans import PlaintextIteration, lloyd, nearest

ROWS, K, ITERATIONS = 90, 3, 4
START = [5, 17, 40]
CARDS = ["amex", "giro", "visa"]
STEP = 2.0**-15
"""Fixed point has 20 bits behind the point; truncations may add some of the last."""


@dataclass(frozen=True)
class Fitted:
    """An estimator, and what plaintext Lloyd finds from the same start in the same normalised rows."""

    model: VeilKMeans
    rows: Real
    low: Real
    width: Real
    steps: list[PlaintextIteration]

    @property
    def labels(self) -> Any:
        return nearest(self.rows, self.steps[-2].centres)

    def nearest(self, values: Real) -> Any:
        """The cluster of rows in original units, by the centroids that were opened."""
        centres = (self.model.cluster_centers_ - self.low) / self.width
        return nearest((values - self.low) / self.width, centres)


def values(seed: int, rows: int = ROWS, columns: int = 3) -> Real:
    rng = np.random.default_rng(seed)
    kinds = np.random.default_rng(1).integers(0, K, ROWS)[:rows]
    return np.array([10.0, 25.0, 45.0])[kinds][:, None] * np.arange(1, columns + 1) + rng.normal(0, 4, (rows, columns))


def fitted(model: VeilKMeans, data: Any, joint: Real, hot: int) -> Fitted:
    """`hot`: how many of the columns are 0 or 1, the first ones."""
    low, high = joint.min(axis=0), joint.max(axis=0)
    low[:hot], high[:hot] = 0, 1
    rows = (joint - low) / (high - low)
    steps = lloyd(lambda: [rows], rows[START], ITERATIONS, model.tol)
    return Fitted(model.fit(data), rows, low, high - low, steps)


def frames(numbers: Real) -> dict[str, Any]:
    """A bank's pandas frame with text and an index of its own, and a shop's table."""
    cards = np.array(CARDS)[np.arange(len(numbers)) % 3]
    bank = pd.DataFrame({"card": cards, "paid": numbers[:, 0]}, index=np.arange(len(numbers)) * 3)
    return {"bank": bank, "shop": pa.table({"visits": numbers[:, 1], "spent": numbers[:, 2]})}


def joined(numbers: Real) -> Real:
    return np.hstack([np.eye(3)[np.arange(len(numbers)) % 3], numbers])


@pytest.fixture(scope="module")
def vertical(tmp_path_factory: pytest.TempPathFactory) -> Fitted:
    folder = tmp_path_factory.mktemp("vertical")
    model = VeilKMeans(K, init=START, max_iter=ITERATIONS, tol=0, folder=folder)
    return fitted(model, frames(values(2)), joined(values(2)), 3)


@pytest.fixture(scope="module")
def horizontal() -> Fitted:
    model = VeilKMeans(K, layout="horizontal", init=START, max_iter=ITERATIONS, verbose=1)
    parts = {"north": values(3)[:50], "south": pd.DataFrame(values(3)[50:])}
    return fitted(model, parts, values(3), 0)


def check(one: Fitted) -> None:
    model = one.model
    np.testing.assert_array_equal(model.labels_, one.labels)
    assert model.labels_.dtype == np.int32
    centres = (model.cluster_centers_ - one.low) / one.width
    np.testing.assert_allclose(centres, one.steps[-1].centres, atol=STEP)
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
    centres = (vertical.model.cluster_centers_ - vertical.low) / vertical.width
    np.testing.assert_allclose(centres, plain.cluster_centers_, atol=STEP)


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


def test_new_rows_of_each_party_go_to_the_nearest_centroid(horizontal: Fitted) -> None:
    """A copy works as long as the original is there; parties may be named in any order."""
    copied = pickle.loads(pickle.dumps(horizontal.model))  # noqa: S301
    new = values(8, 12)
    labels = copied.predict({"south": new[7:], "north": scipy.sparse.csr_array(new[:7])})
    np.testing.assert_array_equal(labels, horizontal.nearest(new))


def test_a_fit_tells_what_it_did_and_where(vertical: Fitted) -> None:
    model = vertical.model
    assert model.parties_ == ("bank", "shop") == tuple(model.reports_)
    assert all(report["iterations"][-1]["done"] == ITERATIONS for report in model.reports_.values())
    assert all(
        sum(stage.get("bytes_sent", 0) for stage in report["stages"].values()) for report in model.reports_.values()
    )
    folder = model.run_folder("shop")
    assert folder.is_relative_to(model.folder / "fit-1" / "shop")
    assert (folder / "result.json").exists()


def test_each_party_has_its_own_things(vertical: Fitted) -> None:
    """What the bank has is nowhere in the shop's folder, and nobody has a key of another."""
    home = vertical.model.folder / "fit-1"
    assert sorted(file.name for file in home.rglob("*.key")) == ["bank.key", "dealer.key", "shop.key"]
    assert pa.parquet.read_schema(home / "shop" / "data.parquet").names == ["visits", "spent"]
    assert not list((home / "dealer").glob("data*"))
    opened = pa.parquet.read_schema(vertical.model.run_folder("shop") / "centroids.parquet").names
    assert opened == ["cluster", "visits", "spent"]


def test_a_clone_is_unfitted_and_has_the_same_parameters(vertical: Fitted) -> None:
    copied = clone(vertical.model)
    assert copied.get_params() == vertical.model.get_params()
    with pytest.raises(NotFittedError):
        copied.predict(frames(values(2)))
    again = pickle.loads(pickle.dumps(VeilKMeans(5, parties=("a", "b", "c"))))  # noqa: S301
    assert again.get_params() == VeilKMeans(5, parties=("a", "b", "c")).get_params()


def test_a_party_s_own_sentence_reaches_the_caller() -> None:
    """A bound that leaves no room for products is found out by the parties, not by us."""
    with pytest.raises(VeilmeansError, match=r"(party_a|party_b|dealer) ended with error: kmeans\.normalise\.bound"):
        VeilKMeans(2, normalise="none", bound=2.0**50).fit(values(2))


FRAMES = frames(values(2))


@pytest.mark.parametrize(
    ("parameters", "data", "sentence"),
    [
        ({}, np.full((9, 4), np.nan), "NaN"),
        ({}, np.full((9, 4), 1j), "Complex data not supported"),
        ({}, np.ones(9), "Expected 2D array"),
        ({}, np.ones((9, 1)), "n_features=1"),
        ({"layout": "horizontal", "n_clusters": 1}, np.ones((1, 9)), "n_samples=1"),
        ({}, np.ones((2, 9)), "n_samples=2 should be >= n_clusters=3"),
        ({}, {"bank": FRAMES["bank"]}, "two parties are the least"),
        ({}, {**FRAMES, "shop": FRAMES["shop"].slice(1)}, "bank has 90 rows and shop 89"),
        ({}, {**FRAMES, "bank": FRAMES["bank"].astype({"paid": complex})}, "the part of bank cannot be read"),
        ({}, {"bank": FRAMES["bank"], "no shop": FRAMES["shop"]}, "'no shop' must be 1 to 80 letters"),
        ({"layout": "diagonal"}, FRAMES, "layout is 'diagonal'"),
        ({"layout": "horizontal"}, FRAMES, "column 0 of shop is 'visits': it must be 'card', as bank has them"),
        ({"n_clusters": 0}, FRAMES, "n_clusters is 0"),
        ({"init": "k-means++"}, FRAMES, r"init is 'k-means\+\+'"),
        ({"init": [1, 2]}, FRAMES, "2 rows for 3 clusters"),
        ({"max_iter": 0}, FRAMES, r"kmeans\.max_iter"),
        ({"tol": -1}, FRAMES, r"kmeans\.tol"),
        ({"normalise": "none"}, FRAMES, r"kmeans\.normalise\.bound: needed"),
        ({"products": "magic"}, FRAMES, r"kmeans\.products"),
        ({"random_state": -1}, FRAMES, r"kmeans\.init\.seed"),
        ({"parties": ("alone",)}, np.ones((9, 4)), "it must name two or more"),
    ],
)
def test_what_cannot_be_clustered_is_refused_before_anyone_starts(
    parameters: dict[str, Any], data: Any, sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        VeilKMeans(**{"n_clusters": 3, **parameters}).fit(data)


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"bank": FRAMES["bank"]}, "X has parts of bank: the parties are bank, shop"),
        ({**FRAMES, "shop": FRAMES["shop"].select(["spent", "visits"])}, "column 0 of shop is 'spent'"),
        ({**FRAMES, "shop": FRAMES["shop"].select(["visits"])}, "shop has 1 columns: 2 are needed, as at fit"),
        (np.ones((3, 5)), "X has 5 features, but VeilKMeans is expecting 4"),
    ],
)
def test_new_rows_must_be_like_the_old(vertical: Fitted, data: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        vertical.model.predict(data)


def test_the_package_is_light_and_says_what_is_missing() -> None:
    """scikit-learn is needed for nothing else, and comes when it is asked for."""
    code = (
        "import sys, veilmeans; print({'sklearn', 'apache_beam', 'numpy'} & set(sys.modules)); "
        "sys.modules['sklearn'] = None; veilmeans.VeilKMeans"
    )
    home = str(Path(veilmeans.__file__).parents[1])
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": home}
    )
    assert ended.stdout == "set()\n"
    assert "VeilKMeans needs scikit-learn: pip install 'veilmeans[sklearn]'" in ended.stderr
    with pytest.raises(AttributeError, match="no attribute 'KMeans'"):
        _ = veilmeans.KMeans
