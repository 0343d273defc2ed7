"""`VeilKMeans`: secure K-means as a scikit-learn estimator, with real party processes on this machine.

fit ─▶ one folder for each party: data, keys, configuration ─▶ `veilmeans offline` ─▶ `veilmeans train` ─▶ their results
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import scipy.sparse
from numpy.typing import NDArray

from veilmeans.io.storage.result_files import ASSIGNMENTS, CENTROIDS, read_result
from veilmeans.io.storage.run_report import RunReport
from veilmeans.pipelines.local.party_frames import (
    PartyFrame,
    PartyFrames,
    array_held,
    check_columns,
    frame_held,
    is_frame,
    split,
)
from veilmeans.pipelines.local.party_processes import CONFIG, TrialFolder, run_parties
from veilmeans.pipelines.local.trial_configs import RUN, write_prediction, write_training
from veilmeans.schemas.errors import ConfigError, InputError, StorageError

try:
    from sklearn.base import BaseEstimator, ClusterMixin
    from sklearn.utils import check_array, check_random_state
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError:
    raise ImportError("VeilKMeans needs scikit-learn: pip install 'veilmeans[sklearn]'") from None
Labels = NDArray[np.int32]


class VeilKMeans(ClusterMixin, BaseEstimator):
    """K-means over the data frames of several parties, on shares, as a scikit-learn estimator.

    For trying out and for notebooks: whoever calls `fit` sees everybody's data. In production each party runs its own
    commands on its own machine. What runs is the same code and protocol: each party is a process of its own, with its
    own folder, keys, configuration, data file and store, and the processes talk over mutual TLS.

    `X` is a mapping party -> data, in the parties' order: frames (pandas, polars, pyarrow, whatever speaks Arrow or the
    data frame protocol), arrays or scipy's sparse matrices. Vertically they have the same rows, horizontally the same
    columns. One array or frame is split evenly between `parties`, by columns or by rows. Columns of text become columns
    of 0 and 1.

    Parameters
    ----------
    n_clusters : k.
    layout : "vertical" (same rows, each party its own columns) or "horizontal" (same columns, each its own rows).
    parties : who shares an `X` that is no mapping.
    init : "indices" (k rows, drawn from the seed), "random" (values drawn from the seed), "local" (each party's own
        plaintext K-means), or the numbers of k rows.
    max_iter : iterations at most. Less than scikit-learn's 300, because randomness for every iteration that may come is
        made before the first.
    tol : stop when the centroids' squared movement is below this, in sum over all centroids and normalised columns;
        0: never, and not even that bit is opened.
    normalise : "minmax" (to [0, 1]), "zscore" or "none"; horizontally the scale is that of all rows, found on shares.
    bound : largest magnitude of a normalised value; needed for "none", 16 for "zscore" if not said.
    products : "auto", "beaver" or "he", for all parties or in a mapping, as `kmeans.products` in a configuration.
    margin : `predict` takes values that lie outside the trained interval by so many times its width.
    random_state : an int is the public seed of the start; None: a new one each time.
    folder : where the parties' folders are kept, a new `fit-N` for each fit; None: a temporary one, removed with the
        estimator.
    verbose : 1 tells what runs and how long it took.

    Attributes
    ----------
    labels_ : the cluster of each row as the last iteration assigned it; horizontally in the parties' order.
    cluster_centers_ : k × columns, in original units.
    columns_ : the names of these columns, after text has become columns of 0 and 1; vertically with their party's.
    inertia_ : sum of squared distances to the centroids that the last iteration began with, in normalised units.
    n_iter_ : iterations.
    reports_ : party -> what its run has cost: seconds, messages and bytes of each stage.
    parties_, n_features_in_, feature_names_in_ : of what `fit` was given.
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        layout: str = "vertical",
        parties: Sequence[str] = ("party_a", "party_b"),
        init: Any = "indices",
        max_iter: int = 10,
        tol: float = 1e-4,
        normalise: str = "minmax",
        bound: float | None = None,
        products: Any = "auto",
        margin: float = 1.0,
        random_state: Any = None,
        folder: Any = None,
        verbose: int = 0,
    ) -> None:
        self.n_clusters = n_clusters
        self.layout = layout
        self.parties = parties
        self.init = init
        self.max_iter = max_iter
        self.tol = tol
        self.normalise = normalise
        self.bound = bound
        self.products = products
        self.margin = margin
        self.random_state = random_state
        self.folder = folder
        self.verbose = verbose

    def fit(self, X: Any, y: object = None) -> "VeilKMeans":  # noqa: ARG002, N803
        """Cluster the rows; every party's process takes part."""
        with _as_value_errors():
            self._check_parameters()
            parts = self._take_first(X)
            place = TrialFolder(None if self.folder is None else Path(self.folder))
            members = write_training(place.path, parts, self._job())
        self._run(place.path, "offline", members, CONFIG)
        self._run(place.path, "train", parts.names, CONFIG)
        self._place, self._members, self.parties_ = place, members, parts.names
        self._trained = {name: (each.columns, each.sparse) for name, each in parts.held.items()}
        self._read_results()
        return self

    def predict(self, X: Any) -> Labels:  # noqa: N803
        """The cluster of each new row, found on shares: the centroids stay closed, and only clusters are opened."""
        check_is_fitted(self)
        with _as_value_errors():
            parts = self._take_more(X)
            folder = self._place.path
            if not folder.exists():
                raise StorageError("the parties' folders went with the estimator that was fitted: name a `folder`")
            run = write_prediction(folder, self._members, parts, self.margin)
        self._run(folder, "offline", self._members, f"{run}.yaml")
        self._run(folder, "predict", self.parties_, f"{run}.yaml")
        return self._read_labels(run)

    def run_folder(self, party: str, run: str = RUN) -> Path:
        """Where a party's results, report and shares of a run are."""
        check_is_fitted(self)
        return self._place.path / party / "storage" / "runs" / run

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    @property
    def _vertical(self) -> bool:
        return bool(self.layout == "vertical")

    # What the parties have

    def _check_parameters(self) -> None:
        """What the configuration's own check would not see, or not by its name here."""
        if self.layout not in ("vertical", "horizontal"):
            raise ConfigError(f"layout is {self.layout!r}: it must be 'vertical' or 'horizontal'")
        if not isinstance(self.n_clusters, Integral) or self.n_clusters < 1:
            raise ConfigError(f"n_clusters is {self.n_clusters!r}: it must be a whole number from 1")
        if isinstance(self.init, str) and self.init not in ("indices", "random", "local"):
            raise ConfigError(f"init is {self.init!r}: it must be 'indices', 'random', 'local' or k row numbers")
        if isinstance(self.parties, str) or len(self.parties) < 2:
            raise ConfigError(f"parties is {self.parties!r}: it must name two or more")

    def _take_first(self, data: Any) -> PartyFrames:
        """Everyone's part of what `fit` is given."""
        if _in_parts(data):
            parts = PartyFrames({name: _held(each, name) for name, each in data.items()}, self._vertical)
            self._remember(data, parts)
        else:
            parts = split(self._take_whole(data, reset=True), tuple(self.parties), self._vertical)
        if parts.total_rows < self.n_clusters:
            raise InputError(f"n_samples={parts.total_rows} should be >= n_clusters={self.n_clusters}.")
        return parts

    def _take_more(self, data: Any) -> PartyFrames:
        """Everyone's part of what `predict` is given, in the form that it had at `fit`."""
        if not _in_parts(data):
            widths = [len(self._trained[name][0]) for name in self.parties_] if self._vertical else None
            parts = split(self._take_whole(data, reset=False), self.parties_, self._vertical, widths)
        elif set(data) != set(self.parties_):
            raise InputError(f"X has parts of {', '.join(data)}: the parties are {', '.join(self.parties_)}")
        else:
            parts = PartyFrames({name: _held(data[name], name) for name in self.parties_}, self._vertical)
        held = {name: each.kept_as(self._trained[name][1]) for name, each in parts.held.items()}
        for name, each in held.items():
            check_columns(name, each.columns, self._trained[name][0], "as at fit")
        return PartyFrames(held, self._vertical)

    def _take_whole(self, data: Any, reset: bool) -> PartyFrame:
        """An array or a frame of all."""
        if is_frame(data):
            validate_data(self, data, reset=reset, skip_check_array=True)
            return frame_held(data, "X")
        return array_held(validate_data(self, data, reset=reset, accept_sparse="csr"))

    def _remember(self, data: Mapping[str, Any], parts: PartyFrames) -> None:
        """Of a mapping, what scikit-learn remembers of an array or a frame."""
        self.n_features_in_ = len(parts.columns)
        if all(map(is_frame, data.values())):
            self.feature_names_in_ = np.array(parts.columns, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_

    def _job(self) -> dict[str, Any]:
        """The parameters as a configuration has them."""
        named = isinstance(self.init, str)
        return {
            "layout": self.layout,
            "clusters": int(self.n_clusters),
            "max_iter": self.max_iter,
            "tol": self.tol,
            "init": {
                "method": self.init if named else "indices",
                "seed": self._seed(),
                "indices": None if named else np.asarray(self.init).tolist(),
            },
            "normalise": {
                "method": self.normalise,
                "bound": self.bound,
                "aggregate": not self._vertical and self.normalise != "none",
            },
            "products": self.products,
        }

    def _seed(self) -> int:
        """Public, and agreed by all."""
        if isinstance(self.random_state, Integral):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    # What they do and find

    def _run(self, folder: Path, command: str, names: Sequence[str], config: str) -> None:
        seconds = run_parties(folder, command, names, config)
        if self.verbose:
            print(f"{command}: {', '.join(names)} in {seconds:.1f} s")

    def _read_results(self) -> None:
        first = self.run_folder(self.parties_[0])
        result = read_result(first)
        self.labels_ = self._read_labels(RUN)
        tables = {name: pyarrow.parquet.read_table(self.run_folder(name) / CENTROIDS) for name in self.parties_}
        parts = [(party, name, table) for party, table in tables.items() for name in table.column_names[1:]]
        parts = parts if self._vertical else parts[: len(parts) // len(tables)]
        self.cluster_centers_ = np.column_stack([table.column(name).to_numpy() for _, name, table in parts])
        self.columns_ = tuple(f"{party}.{name}" if self._vertical else name for party, name, _ in parts)
        self.n_iter_, self.inertia_ = result["iterations"], result["inertia"]
        self.reports_ = {name: RunReport(self.run_folder(name)).content for name in self.parties_}

    def _read_labels(self, run: str) -> Labels:
        tables = [pyarrow.parquet.read_table(self.run_folder(name, run) / ASSIGNMENTS) for name in self.parties_]
        return np.concatenate([table.column(1).to_numpy() for table in tables[: 1 if self._vertical else None]])


@contextmanager
def _as_value_errors() -> Iterator[None]:
    """A mistake in what the caller gave is a ValueError, as everywhere in scikit-learn."""
    try:
        yield
    except (ConfigError, InputError) as error:
        raise ValueError(error.sentence) from None


def _in_parts(data: Any) -> bool:
    """Whether the parties' parts are told apart; one of scipy's sparse matrices is a dict."""
    return isinstance(data, Mapping) and not scipy.sparse.issparse(data)


def _held(data: Any, party: str) -> PartyFrame:
    what = f"the part of {party}"
    return (
        frame_held(data, what)
        if is_frame(data)
        else array_held(check_array(data, accept_sparse="csr", input_name=what))
    )
