"""Secure K-means as a scikit-learn estimator, with real party processes on this machine.

fit ─▶ one folder for each party: data, keys, configuration ─▶ [`veilmeans offline`] ─▶ `veilmeans train` ─▶ results
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

from veilmeans.io.storage.result_files import read_result
from veilmeans.io.storage.run_report import RunReport
from veilmeans.pipelines.local import party_frames
from veilmeans.pipelines.local.opened_distances import own_squared_distances
from veilmeans.pipelines.local.party_frames import PartyFrame, PartyFrames, is_frame, split_frame
from veilmeans.pipelines.local.party_processes import CONFIG, TrialFolder, run_parties
from veilmeans.pipelines.local.trial_configs import RUN, write_trial_prediction, write_trial_training
from veilmeans.schemas.arrays import Real
from veilmeans.schemas.config import load_config
from veilmeans.schemas.errors import ConfigError, InputError, StorageError
from veilmeans.schemas.run_folder import RunFolder, StorageFolder

try:
    from sklearn.base import BaseEstimator, ClusterMixin
    from sklearn.utils import check_array, check_random_state
    from sklearn.utils.metaestimators import available_if
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError:
    raise ImportError("VeilKMeans needs scikit-learn: pip install 'veilmeans[sklearn]'") from None
Labels = NDArray[np.int32]
_INITS = ("indices", "random", "local", "k-means++")


def _opens_scores(model: "VeilKMeans") -> bool:
    """Raise AttributeError, as scikit-learn expects of a method that is not there, unless scores may be opened."""
    if not model.scores:
        raise AttributeError("scores is False: set it to True, so that distances may be opened")
    return True


class VeilKMeans(ClusterMixin, BaseEstimator):
    """Secure K-means over the data of several parties, as a scikit-learn estimator.

    For trials and notebooks: the caller of `fit` sees the data of all parties. In production each party runs its own
    commands on its own machine. Code and protocol are the same: each party is a separate process with its own folder,
    keys, configuration, data file and triple store, and the processes exchange messages over mutual TLS.

    `X` is a mapping party -> data, in the parties' order: data frames (pandas, polars, pyarrow, any object with the
    Arrow or the data frame protocol), arrays or scipy's sparse matrices. Vertically they have the same rows,
    horizontally the same columns. One array or frame is split evenly between `parties`, by columns or by rows. Text
    columns are one-hot encoded.

    Parameters
    ----------
    n_clusters : k.
    layout : "vertical" (same rows, each party its own columns) or "horizontal" (same columns, each its own rows).
    parties : names of the parties if `X` is not a mapping.
    init : "indices" (k rows, drawn from the seed), "random" (values drawn from the seed), "local" (each party's own
        plaintext K-means), "k-means++" (rows chosen on shares by their distances), or the numbers of k rows.
    n_init : number of starts, all in the same rounds; the one of the least inertia is chosen on shares, and nobody
        learns which it is. Not with the numbers of k rows.
    max_iter : largest number of iterations. Less than scikit-learn's 300, because correlated randomness for all of them
        is made before the first.
    tol : stop when the squared movement of all centroids, summed over normalised columns, is below this; 0: never stop
        early, and not even this bit is opened.
    normalise : "minmax" (to [0, 1]), "zscore" or "none"; horizontally by statistics of all rows, computed on shares.
    bound : largest magnitude of a normalised value; needed for "none"; default for "zscore": 16.
    products : "auto", "beaver" or "he", for all parties or in a mapping, as `kmeans.products` in a configuration.
    outliers : number of outliers to find, or their fraction of the rows; None: none.
    trim : True: in each iteration outliers do not move the centroids (k-means--); `inertia_` is then not computed.
    scores : True: open each row's squared distance to its centroid; `score_samples`, `score` and `transform` need it.
    minimum_size : centroids of clusters with fewer rows are not opened, and are NaN in `cluster_centers_`; 0: all are.
        Not with `scores`, nor horizontally with "minmax".
    dealer : True: a dealer, in a process of its own, makes correlated randomness for the parties. False: they make it
        themselves.
    margin : how far out of the trained range `predict` accepts values, in multiples of the range's width.
    random_state : an int is the public seed of the first centroids; None: a new one each time.
    folder : where the parties' folders are kept, a new `fit-N` for each fit; None: a temporary folder, removed with the
        estimator.
    verbose : 1 prints each command and its seconds.

    Attributes
    ----------
    labels_ : the cluster of each row, by the final centroids as in `predict`; horizontally in the parties' order.
    cluster_centers_ : k × columns, in original units; NaN where a centroid was withheld, with `minimum_size`.
    columns_ : the names of these columns after one-hot encoding; vertically each has its party's name before it.
    inertia_ : sum of squared distances to the final centroids, in normalised units, of rows as the last iteration
        assigned them.
    outliers_ : True for each row that is an outlier, with `outliers`.
    scores_ : squared distance of each row to its centroid, in normalised units, with `scores`.
    n_iter_ : number of iterations.
    reports_ : party -> the costs of its run: seconds, messages and bytes of each stage.
    parties_, n_features_in_, feature_names_in_ : parties, number and names of columns of the data given to `fit`.
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        layout: str = "vertical",
        parties: Sequence[str] = ("party_a", "party_b"),
        init: Any = "indices",
        n_init: int = 1,
        max_iter: int = 10,
        tol: float = 1e-4,
        normalise: str = "minmax",
        bound: float | None = None,
        products: Any = "auto",
        outliers: float | None = None,
        trim: bool = False,
        scores: bool = False,
        minimum_size: int = 0,
        dealer: bool = False,
        margin: float = 1.0,
        random_state: Any = None,
        folder: Any = None,
        verbose: int = 0,
    ) -> None:
        self.n_clusters, self.layout, self.parties, self.init, self.n_init = n_clusters, layout, parties, init, n_init
        self.max_iter, self.tol, self.normalise, self.bound = max_iter, tol, normalise, bound
        self.products, self.dealer, self.margin, self.random_state = products, dealer, margin, random_state
        self.outliers, self.trim, self.scores, self.minimum_size = outliers, trim, scores, minimum_size
        self.folder, self.verbose = folder, verbose

    def fit(self, X: Any, y: object = None) -> "VeilKMeans":  # noqa: ARG002, N803
        """Find the clusters, in one process for each party."""
        with _as_value_errors():
            self._check_parameters()
            frames = self._training_frames(X)
            trial = TrialFolder(None if self.folder is None else Path(self.folder))
            job = self._job() | self._opened(frames.names)
            members = write_trial_training(trial.path, frames, job, self.dealer)
        self._run(trial.path, "train", frames.names, members, CONFIG)
        self._trial_folder, self._members, self.parties_ = trial, members, frames.names
        self._trained = {name: (each.columns, each.sparse) for name, each in frames.by_party.items()}
        self._read_results()
        return self

    def predict(self, X: Any) -> Labels:  # noqa: N803
        """Return the cluster of each new row, found on shares: the centroids are not opened."""
        return self._read_labels(self._predict(X))

    @available_if(_opens_scores)  # type: ignore[untyped-decorator]
    def score_samples(self, X: Any) -> Real:  # noqa: N803
        """Return, negated, each new row's squared distance to its nearest centroid: the lower, the more unusual."""
        check_is_fitted(self)
        scores: Real = -self._read_column("scores", self._predict(X))
        return scores

    @available_if(_opens_scores)  # type: ignore[untyped-decorator]
    def score(self, X: Any, y: object = None) -> float:  # noqa: ARG002, N803
        """Return, negated, the sum of the new rows' squared distances to their nearest centroids, normalised."""
        return float(self.score_samples(X).sum())

    @available_if(_opens_scores)  # type: ignore[untyped-decorator]
    def transform(self, X: Any) -> Real:  # noqa: N803
        """Return the distance of each new row to each centroid, in normalised units.

        Each party adds the part of its own columns, from its own rows and the centroids that were opened to it.
        """
        run = self._write_prediction(X)
        folder = self._trial_folder.path
        parts = [own_squared_distances(load_config(folder / name / f"{run}.yaml")) for name in self.parties_]
        distances: Real = np.sqrt(sum(parts) if self._vertical else np.concatenate(parts))
        return distances

    def _predict(self, X: Any) -> str:  # noqa: N803
        """Run a prediction, and return the name of its run."""
        run = self._write_prediction(X)
        self._run(self._trial_folder.path, "predict", self.parties_, self._members, f"{run}.yaml")
        return run

    def _write_prediction(self, X: Any) -> str:  # noqa: N803
        """Write the configurations and new data of a prediction, and return the name of its run."""
        check_is_fitted(self)
        with _as_value_errors():
            frames = self._prediction_frames(X)
            folder = self._trial_folder.path
            if not folder.exists():
                raise StorageError("the parties' folders were removed with the estimator: set `folder` to keep them")
            return write_trial_prediction(folder, self._members, frames, self.margin)

    def run_folder(self, party: str, run: str = RUN) -> Path:
        """Return the folder of a party's results, report and shares of a run."""
        check_is_fitted(self)
        return self._run_folder(party, run).path

    def _run_folder(self, party: str, run: str = RUN) -> RunFolder:
        return StorageFolder(self._trial_folder.path / party / "storage").run(run)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    @property
    def _vertical(self) -> bool:
        return bool(self.layout == "vertical")

    def _check_parameters(self) -> None:
        """Refuse parameters that the configuration does not check, or checks under another name."""
        if self.layout not in ("vertical", "horizontal"):
            raise ConfigError(f"layout is {self.layout!r}: it must be 'vertical' or 'horizontal'")
        if not isinstance(self.n_clusters, Integral) or self.n_clusters < 1:
            raise ConfigError(f"n_clusters is {self.n_clusters!r}: it must be an integer, at least 1")
        if not isinstance(self.n_init, Integral) or self.n_init < 1:
            raise ConfigError(f"n_init is {self.n_init!r}: it must be an integer, at least 1")
        if isinstance(self.init, str) and self.init not in _INITS:
            known = ", ".join(map(repr, _INITS))
            raise ConfigError(f"init is {self.init!r}: it must be {known} or k row numbers")
        if isinstance(self.parties, str) or len(self.parties) < 2:
            raise ConfigError(f"parties is {self.parties!r}: it must name at least two")

    def _training_frames(self, data: Any) -> PartyFrames:
        """Split the data given to `fit` between the parties."""
        if _is_by_party(data):
            frames = PartyFrames({name: _party_frame(each, name) for name, each in data.items()}, self._vertical)
            self._keep_column_names(data, frames)
        else:
            frames = split_frame(self._joint_frame(data, reset=True), tuple(self.parties), self._vertical)
        if frames.total_rows < self.n_clusters:
            raise InputError(f"n_samples={frames.total_rows} should be >= n_clusters={self.n_clusters}.")
        return frames

    def _prediction_frames(self, data: Any) -> PartyFrames:
        """Split the data given to `predict` between the parties, in the form that they had at `fit`."""
        if not _is_by_party(data):
            widths = [len(self._trained[name][0]) for name in self.parties_] if self._vertical else None
            frames = split_frame(self._joint_frame(data, reset=False), self.parties_, self._vertical, widths)
        elif set(data) != set(self.parties_):
            raise InputError(f"X has data of {', '.join(data)}: the parties are {', '.join(self.parties_)}")
        else:
            frames = PartyFrames({name: _party_frame(data[name], name) for name in self.parties_}, self._vertical)
        converted = {name: each.as_sparse(self._trained[name][1]) for name, each in frames.by_party.items()}
        for name, each in converted.items():
            party_frames.check_columns(name, each.columns, self._trained[name][0], "as at fit")
        return PartyFrames(converted, self._vertical)

    def _joint_frame(self, data: Any, reset: bool) -> PartyFrame:
        """Check an array or a data frame that is not split yet."""
        if is_frame(data):
            validate_data(self, data, reset=reset, skip_check_array=True)
            return party_frames.frame_from_table(data, "X")
        return party_frames.frame_from_array(validate_data(self, data, reset=reset, accept_sparse="csr"))

    def _keep_column_names(self, data: Mapping[str, Any], frames: PartyFrames) -> None:
        """Keep of a mapping the attributes that scikit-learn keeps of an array or a data frame."""
        self.n_features_in_ = len(frames.columns)
        if all(map(is_frame, data.values())):
            self.feature_names_in_ = np.array(frames.columns, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_

    def _job(self) -> dict[str, Any]:
        """Return the parameters as fields of `kmeans` in a configuration."""
        named = isinstance(self.init, str)
        method, indices = (self.init, None) if named else ("indices", np.asarray(self.init).tolist())
        aggregate = not self._vertical and self.normalise != "none"
        return {
            "layout": self.layout,
            "clusters": int(self.n_clusters),
            "starts": int(self.n_init),
            "max_iter": self.max_iter,
            "tol": self.tol,
            "init": {"method": method, "seed": self._seed(), "indices": indices},
            "normalise": {"method": self.normalise, "bound": self.bound, "aggregate": aggregate},
            "products": self.products,
        }

    def _opened(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the fields that say what is found and opened of outliers."""
        fields: dict[str, Any] = {"reveal.scores": list(names)} if self.scores else {}
        fields |= {"reveal.minimum_size": self.minimum_size} if self.minimum_size else {}
        if self.outliers is not None:
            named = "fraction" if isinstance(self.outliers, float) else "count"
            fields |= {"outliers": {named: self.outliers, "during_training": bool(self.trim)}}
            fields |= {"reveal.outliers": list(names), **({"reveal.inertia": []} if self.trim else {})}
        return fields

    def _seed(self) -> int:
        """Return the public seed that all parties agree on."""
        if isinstance(self.random_state, Integral):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _run(self, folder: Path, command: str, parties: Sequence[str], members: Sequence[str], config: str) -> None:
        """Run a command of all parties; before it `offline` of all members, if one is a dealer."""
        with_dealer = [("offline", members)] if len(members) > len(parties) else []
        for each, names in (*with_dealer, (command, parties)):
            seconds = run_parties(folder, each, names, config)
            if self.verbose:
                print(f"{each}: {', '.join(names)} in {seconds:.1f} s")

    def _read_results(self) -> None:
        result = read_result(self._run_folder(self.parties_[0]))
        self.labels_ = self._read_labels(RUN)
        tables = {name: pyarrow.parquet.read_table(self._run_folder(name).centroids) for name in self.parties_}
        columns = [(party, name, table) for party, table in tables.items() for name in table.column_names[1:]]
        columns = columns if self._vertical else columns[: len(columns) // len(tables)]
        self.cluster_centers_ = np.column_stack([table.column(name).to_numpy() for _, name, table in columns])
        self.columns_ = tuple(f"{party}.{name}" if self._vertical else name for party, name, _ in columns)
        self.n_iter_ = result["iterations"]
        for name in ("inertia_", "outliers_", "scores_"):
            self.__dict__.pop(name, None)
        if "inertia" in result:
            self.inertia_ = result["inertia"]
        if self.scores:
            self.scores_ = self._read_column("scores", RUN)
        if self.outliers is not None:
            self.outliers_ = self._read_outliers()
        self.reports_ = {name: RunReport(self._run_folder(name)).content for name in self.parties_}

    def _read_labels(self, run: str) -> Labels:
        labels: Labels = self._read_column("assignments", run)
        return labels

    def _read_column(self, result: str, run: str) -> Any:
        """Read what was opened of each row; vertically all parties have the same."""
        files = [
            getattr(self._run_folder(name, run), result) for name in self.parties_[: 1 if self._vertical else None]
        ]
        return np.concatenate([pyarrow.parquet.read_table(file).column(1).to_numpy() for file in files])

    def _read_outliers(self) -> NDArray[np.bool_]:
        """Mark the rows that the parties' files of outliers name; without ids rows are numbered by each party."""
        parts = []
        for name in self.parties_[: 1 if self._vertical else None]:
            folder = self._run_folder(name)
            found = np.zeros(pyarrow.parquet.read_metadata(folder.assignments).num_rows, bool)
            found[pyarrow.parquet.read_table(folder.outliers).column(0).to_numpy()] = True
            parts.append(found)
        return np.concatenate(parts)


@contextmanager
def _as_value_errors() -> Iterator[None]:
    """Raise a caller's mistake as a ValueError, as scikit-learn does."""
    try:
        yield
    except (ConfigError, InputError) as error:
        raise ValueError(error.sentence) from None


def _is_by_party(data: Any) -> bool:
    """True if `data` maps parties to their data. (One of scipy's sparse matrices is a dict, too.)"""
    return isinstance(data, Mapping) and not scipy.sparse.issparse(data)


def _party_frame(data: Any, party: str) -> PartyFrame:
    what = f"the data of {party}"
    if is_frame(data):
        return party_frames.frame_from_table(data, what)
    return party_frames.frame_from_array(check_array(data, accept_sparse="csr", input_name=what))
