"""The K-means job in a configuration: its fields, checked when the file is read."""

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, FiniteFloat, model_validator

from veilmeans.schemas.config_fields import (
    AGREED_IN_ALIGNMENT,
    AGREED_IN_PREDICTION,
    AGREED_IN_RUNS,
    AGREED_IN_TRAINING,
    MINIMUM_SIZE,
    PART_OF_MODEL,
    PATH,
    REVEAL_POLICY,
    Agreed,
    Command,
    ConfigSection,
    Name,
)
from veilmeans.schemas.errors import ConfigError


def _refuse_duplicates(value: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(value)) != len(value):
        raise ValueError("a column is named twice")
    return value


def _refuse_below_one(value: int | dict[str, int]) -> int | dict[str, int]:
    if min(value.values() if isinstance(value, dict) else [value]) < 1:
        raise ValueError("must be at least 1")
    return value


def _as_text(value: object) -> object:
    """A category as the data spell it: YAML reads some as numbers or truth values."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int) else value


def _as_numbers(value: object) -> object:
    """Numbers of clusters as a list; also ranges and lists as text, such as "2-10" or "2, 4-6"."""
    if not isinstance(value, str):
        return value
    numbers: list[int] = []
    for part in value.split(","):
        first, dash, last = part.partition("-")
        last = last if dash else first
        if not (first.strip().isdecimal() and last.strip().isdecimal()):
            raise ValueError(f"{value!r} is no range of numbers of clusters, such as 2-10")
        numbers += range(int(first), int(last) + 1)
    return numbers


def _check_swept(value: tuple[int, ...]) -> tuple[int, ...]:
    if not value or list(value) != sorted(set(value)) or not 1 <= value[0] <= value[-1] <= MOST_CLUSTERS:
        raise ValueError(f"must be ascending numbers of clusters, from 1 to {MOST_CLUSTERS:,}")
    return value


Category = Annotated[str, BeforeValidator(_as_text), Field(min_length=1)]
Counts = Annotated[int | dict[str, int], AfterValidator(_refuse_below_one)]
"""One number, or one for each party."""
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
MOST_CLUSTERS = 1024
Swept = Annotated[tuple[int, ...], BeforeValidator(_as_numbers), AfterValidator(_check_swept)]
"""The numbers of clusters that a sweep tries."""
MOST_PROFILE_COLUMNS = 1000
"""Profiles multiply a dense matrix of twice as many columns."""
MOST_CLUSTERS_BY_PAIRS = 8
"""Assignment by all pairs needs twice as much correlated randomness with each further cluster."""


class NormaliseConfig(ConfigSection):
    """The normalisation of values: minmax to [0, 1], zscore to mean 0 and deviation 1, or none."""

    method: Annotated[Literal["minmax", "zscore", "none"], PART_OF_MODEL] = "minmax"
    """how values are normalised"""
    bound: Annotated[Annotated[float, Field(gt=0, allow_inf_nan=False)] | None, PART_OF_MODEL] = None
    """largest magnitude of a normalised value; default: 1 for minmax, 16 for zscore"""
    ranges: Annotated[dict[str, tuple[FiniteFloat, FiniteFloat]] | None, replace(PART_OF_MODEL, horizontal=True)] = None
    """minmax: column -> (lowest, highest) instead of the data's own"""
    aggregate: Annotated[bool, PART_OF_MODEL] = False
    """horizontal: the statistics of all parties' rows together, computed on shares; opens, for each column, lowest and
    highest value (minmax) or mean and deviation (zscore) to all parties"""

    @property
    def interval(self) -> tuple[float, float]:
        """The interval in which normalised values lie."""
        if self.method == "minmax":
            return 0.0, 1.0
        bound = 16.0 if self.bound is None else self.bound
        return -bound, bound

    @model_validator(mode="after")
    def _consistent(self) -> "NormaliseConfig":
        if self.method == "none" and self.bound is None:
            raise ValueError("bound: needed, because method is none")
        if self.method == "minmax" and self.bound not in (None, 1):
            raise ValueError("bound: must be 1 or left out, because method is minmax")
        if self.ranges is not None and self.method != "minmax":
            raise ValueError("ranges: only for method minmax")
        if self.aggregate and (self.ranges is not None or self.method == "none"):
            raise ValueError("aggregate: only for method minmax or zscore, and not together with ranges")
        for column, (low, high) in (self.ranges or {}).items():
            if not low < high:
                raise ValueError(f"ranges.{column}: the lowest value must be below the highest")
        return self


class InitConfig(ConfigSection):
    """The initial centroids."""

    method: Annotated[Literal["random", "indices", "local", "k-means++"], AGREED_IN_TRAINING] = "indices"
    """random: values drawn from the seed; indices: k rows drawn from the seed, or those in indices; local: each party's
    own plaintext k-means; k-means++: a row drawn from the seed, and k − 1 rows chosen secretly, each with a probability
    proportional to its squared distance to those before; the triple store is made for it, and nothing is opened"""
    seed: Annotated[int, AGREED_IN_TRAINING] = Field(0, ge=0, lt=1 << 63, description="public seed")
    indices: Annotated[tuple[Annotated[int, Field(ge=0)], ...] | None, AGREED_IN_TRAINING] = None
    """method indices: k rows, counted from 0 (horizontal: over all parties' rows in their order)"""

    @model_validator(mode="after")
    def _consistent(self) -> "InitConfig":
        if self.indices is not None and self.method != "indices":
            raise ValueError("indices: only for method indices")
        if self.indices is not None and len(set(self.indices)) != len(self.indices):
            raise ValueError("indices: a row is named twice")
        return self


Engine = Literal["auto", "beaver", "he"]


class ProductEnginesConfig(ConfigSection):
    """The engines of the products with one party's matrix."""

    distance: Annotated[Engine, AGREED_IN_RUNS] = Field("auto", description="engine of X·μᵀ")
    update: Annotated[Engine, AGREED_IN_RUNS] = Field("auto", description="engine of Xᵀ·C")


class SparseConfig(ConfigSection):
    """Public facts about one party's matrix."""

    nonzeros: Annotated[NonNegative | None, AGREED_IN_RUNS] = None
    """nonzero values in a row, on average; engine auto uses it; default: as many as columns"""
    integer_valued: Annotated[bool, AGREED_IN_RUNS] = False
    """all normalised values are integers (one-hot), which makes `he` faster"""


class CipherConfig(ConfigSection):
    """The homomorphic encryption of the engine `he`."""

    scheme: Annotated[Literal["okamoto-uchiyama", "paillier"], AGREED_IN_RUNS] = "okamoto-uchiyama"
    """paillier is far slower, for comparison; it needs veilmeans[paillier]"""
    bits: Annotated[Literal[2048, 3072], AGREED_IN_RUNS] = 2048
    """length of the modulus: 112 or 128 bits of security"""


class OutliersConfig(ConfigSection):
    """The rows that are farthest from their centroids; how far is never opened. Name their count, or a fraction."""

    count: Annotated[Annotated[int, Field(ge=1)] | None, AGREED_IN_RUNS] = Field(None, description="number of outliers")
    fraction: Annotated[Annotated[float, Field(gt=0, lt=1)] | None, AGREED_IN_RUNS] = None
    """number of outliers as a fraction of all rows, rounded down; at least 1"""
    during_training: Annotated[bool, AGREED_IN_TRAINING] = False
    """in each iteration the outliers do not move the centroids (k-means--); with one start"""

    def of(self, rows: int) -> int:
        """The number of outliers among so many rows."""
        return self.count if self.count is not None else max(1, int((self.fraction or 0) * rows))

    @model_validator(mode="after")
    def _consistent(self) -> "OutliersConfig":
        if (self.count is None) == (self.fraction is None):
            raise ValueError("name either count or fraction")
        return self


REVEALED = ("assignments", "centroids", "inertia", "scores", "outliers", "explanations", "profiles")
"""The results that a policy names parties for."""


class RevealConfig(ConfigSection):
    """The results that are opened at the end, and to whom. `veilmeans reveal` can open more later, from shares."""

    assignments: Annotated[tuple[str, ...], REVEAL_POLICY] = Field((), description="who learns each row's cluster")
    centroids: Annotated[tuple[str, ...], REVEAL_POLICY] = ()
    """who learns centroids, in original units"""
    columns: Annotated[Literal["own", "all"], REVEAL_POLICY] = "own"
    """vertical: centroids of one's own columns, or of all columns; all also reveals the scale of each column (lowest
    and highest value, or mean and deviation)"""
    inertia: Annotated[tuple[str, ...], REVEAL_POLICY] = ()
    """who learns the sum of squared distances to the centroids"""
    scores: Annotated[tuple[str, ...], REVEAL_POLICY] = ()
    """who learns each row's squared distance to its own centroid, in normalised units"""
    outliers: Annotated[tuple[str, ...], REVEAL_POLICY] = ()
    """who learns which rows are outliers: one bit of each row; needs kmeans.outliers"""
    explanations: Annotated[tuple[str, ...], REVEAL_POLICY] = ()
    """who learns what each of its own columns adds to an outlier's score: opens the cluster of each outlier, and the
    centroids of these clusters in its own columns (horizontal: of its own outliers, in all columns); all of them must
    be named in reveal.outliers"""
    contributions: Annotated[Literal["own", "all"], REVEAL_POLICY] = "own"
    """vertical: explanations by one's own columns, or also by one number for all columns of the others; all also
    reveals the outliers' scores"""
    minimum_size: Annotated[int, MINIMUM_SIZE] = Field(0, ge=0)
    """0: off; else the centroids and profiles of clusters with fewer rows stay closed to everyone, by a test on shares,
    and so do the next larger cluster's where these have fewer rows together; all that is opened is which clusters these
    are. It holds for the run, its predictions and all later openings; not with reveal.scores, contributions: all, or
    lowest and highest values that are opened"""
    profiles: Annotated[tuple[str, ...], REVEAL_POLICY] = ()
    """who learns a profile of each final cluster: how many rows it has, means and spreads of its own columns there
    (horizontal: of all columns, over all parties' rows), and, if it has kmeans.label, how often its label is 1"""


class PredictConfig(ConfigSection):
    """A prediction: new rows are assigned to the clusters of a trained model, which stays shared."""

    model: Annotated[Name, AGREED_IN_PREDICTION] = Field(description="name of the run that trained the model")
    margin: Annotated[NonNegative, AGREED_IN_PREDICTION] = 1.0
    """how far new values may lie outside the trained interval, as a multiple of its width on each side; costs a few
    more bits in each comparison"""
    out_of_range: Literal["error", "clip"] = "error"
    """a new value beyond the margin; clip: it is clipped to the margin's end"""


class AlignConfig(ConfigSection):
    """The private alignment of rows by kmeans.id: all parties' tables are reduced to the ids that all of them have.

    Each party learns which of its own ids are common, how many, and how many ids every party has; nothing else.
    """

    name: Annotated[Annotated[Name, Field(max_length=74)] | None, AGREED_IN_ALIGNMENT] = None
    """the alignment's name; runs with the same name use the same aligned rows; a new one for new data; default: the
    run's name"""
    reveal: Annotated[Literal["ids", "size"], AGREED_IN_ALIGNMENT] = "ids"
    """size, for two parties: only the number of common ids is computed and shown; to match them, all then set ids"""
    case: Annotated[Literal["keep", "lower"], AGREED_IN_ALIGNMENT] = "keep"
    """lower: ids that differ in upper and lower case are the same. Ids are always trimmed, in Unicode's form NFC, and
    integers are written in decimal digits"""
    duplicates: Literal["error", "first"] = "error"
    """several of our rows have the same id; first: the first of them counts, the others are left out"""
    missing: Literal["error", "drop"] = "error"
    """one of our rows has no id; drop: it is left out"""


def section_or_none(value: object) -> object:
    """`true` is a section with its defaults, `false` none."""
    return {} if value is True else None if value is False else value


class KMeansConfig(ConfigSection):
    """K-means over all parties' rows or columns. The fields before layout are about this party's own data."""

    data: Annotated[str | None, PATH] = None
    """our data: a Parquet, CSV, Arrow IPC, .npz or svmlight file, or a glob, on any Beam filesystem"""
    id: str | None = None
    """our column with the rows' ids (vertical: the same ids in the same order at all parties, unless align is set)"""
    columns: Annotated[tuple[str, ...], AfterValidator(_refuse_duplicates)] = ()
    """our columns, in order; default: all but id and label; of .npz and svmlight files, whose columns have no names,
    numbers from 0 and ranges of them ("7", "0-61"), ascending"""
    label: str | None = None
    """our column with 0, 1 or nothing (unknown) for each row, such as a known fraud; never an input: with
    reveal.profiles we alone learn how often it is 1 in each cluster, and nobody learns whether we have one"""
    categories: Annotated[dict[str, tuple[Category, ...]], Agreed(("train",), horizontal=True, bound=False)] = Field({})
    """column -> its categories; each becomes a column of 0 and 1"""
    one_hot: tuple[str, ...] = Field((), description="vertical: columns whose categories are taken from our data")
    unseen: Literal["error", "ignore"] = "error"
    """a value that is none of the declared categories; ignore: all its columns are 0"""
    multi_hot: dict[str, Annotated[int, Field(ge=1, lt=1 << 31)]] = Field({})
    """column with lists of integers from 0 -> how many integers; each becomes a column"""
    missing: Literal["error", "zero", "mean"] = "error"
    """a missing value: empty, null or NaN; zero: 0, mean: the column's mean in our rows; categories and lists: all
    their columns are 0"""
    layout: Annotated[Literal["vertical", "horizontal"], PART_OF_MODEL]
    """vertical: same rows, each party its own columns; horizontal: same columns, each its own rows"""
    rows: Annotated[Counts | None, AGREED_IN_RUNS] = None
    """number of rows; vertical: one number, horizontal: one for each party; with align it may be left out: it is the
    number of rows that all parties have"""
    features: Annotated[Counts, PART_OF_MODEL]
    """number of encoded columns; vertical: one for each party, horizontal: one number"""
    clusters: Annotated[int, PART_OF_MODEL] = Field(ge=1, le=MOST_CLUSTERS, description="number of clusters, k")
    sweep: Annotated[Swept | None, Agreed(("offline", "train"))] = None
    """none: a training with `clusters`; else `veilmeans sweep` trains once with each of these numbers of clusters, such
    as 2-10, with one triple store and one agreement; `clusters` is the largest of them; --clusters sets both"""
    max_iter: Annotated[int, AGREED_IN_TRAINING] = Field(10, ge=1, description="largest number of iterations")
    tol: Annotated[NonNegative, AGREED_IN_TRAINING] = 1e-4
    """stop when the squared movement of all centroids is below this in sum; 0: never stop early, and nothing is opened
    for it"""
    starts: Annotated[int, AGREED_IN_TRAINING] = Field(1, ge=1, le=32)
    """starts, each from initial centroids of its own, in the same rounds; the one of the least inertia is chosen on
    shares: nobody learns which it is, or the others' inertia. A run stops when the centroids of all starts together
    moved by less than tol"""
    final_assignment: Annotated[bool, AGREED_IN_TRAINING] = True
    """after the last iteration, assign all rows once more, to the final centroids: clusters are then as a prediction of
    the same rows finds them; false: clusters as the last iteration assigned them, before it moved the centroids"""
    iterations_per_pipeline: Annotated[int, Field(ge=1, le=100)] | None = None
    """iterations in one Beam pipeline, more for runners that are slow to start one; default: 10 where an iteration runs
    in one call (beam.rounds), else 1"""
    init: InitConfig = InitConfig()
    normalise: NormaliseConfig = NormaliseConfig()
    products: Annotated[Engine | dict[str, Engine | ProductEnginesConfig], AGREED_IN_RUNS] = "auto"
    """engine of the products with a party's matrix: beaver (sends a masked matrix once per run; for dense data), he
    (homomorphic, sends nothing of the matrix's size; for wide and sparse data), or auto; one for all, or one for each
    party, or for each party's distance and update"""
    sparse: Annotated[dict[str, SparseConfig], AGREED_IN_RUNS] = Field({})
    """party -> public facts about its matrix"""
    cipher: CipherConfig = CipherConfig()
    drop_bits: Annotated[Annotated[int, Field(ge=0, le=32)] | None, AGREED_IN_RUNS] = None
    """low bits of distances that comparisons ignore; default: in iterations as many as make them 32 bits wide, in the
    final assignment and in predictions none, so that both find the same clusters"""
    assignment: Annotated[Literal["auto", "pairs", "tree"], AGREED_IN_RUNS] = "auto"
    """how the nearest centroid is found: all pairs of distances at once (few rounds, up to 8 clusters), a tree of
    comparisons (few bytes), or auto, by clusters, rows and link"""
    outliers: OutliersConfig | None = None
    """none: no outliers are found; else, after training or in a prediction, the rows farthest from their centroids"""
    profile_minimum: Annotated[int, AGREED_IN_TRAINING] = Field(10, ge=1)
    """reveal.profiles: of clusters with fewer rows only the size is opened, no mean, spread or rate; where these have
    fewer rows together, the next larger cluster's are hidden, too, which all rows' would otherwise reveal; 1: none"""
    reveal: RevealConfig = RevealConfig()
    predict: PredictConfig | None = None
    """none: this job trains; else it assigns new rows to the clusters of a trained model"""

    @model_validator(mode="after")
    def _consistent(self) -> "KMeansConfig":
        for field, value, common in (
            ("rows", self.rows, self.vertical),
            ("features", self.features, not self.vertical),
        ):
            if value is not None and isinstance(value, int) != common:
                raise ValueError(f"{field}: must be one number{'' if common else ' for each party'}")
        if self.vertical and self.normalise.aggregate:
            raise ValueError("normalise.aggregate: only for layout horizontal; a vertical column has one owner")
        same_scale = self.normalise.aggregate or self.normalise.ranges is not None or self.normalise.method == "none"
        if not self.vertical and not same_scale:
            raise ValueError("normalise: layout horizontal needs ranges, or aggregate: true")
        if self.assignment == "pairs" and self.clusters > MOST_CLUSTERS_BY_PAIRS:
            raise ValueError(f"assignment: pairs is for at most {MOST_CLUSTERS_BY_PAIRS} clusters: set tree or auto")
        self._check_encoding()
        if self.predict is None:
            self._check_init()
        for what in ("centroids", "inertia", "profiles"):
            if self.predict is not None and getattr(self.reveal, what):
                raise ValueError(f"reveal.{what}: must be empty, because a prediction opens what it finds of rows only")
        self._check_outliers()
        self._check_profiles()
        self._check_minimum_size()
        self._check_sweep()
        return self

    @property
    def command(self) -> Command:
        """The command that runs the job."""
        return "train" if self.predict is None else "predict"

    @property
    def vertical(self) -> bool:
        """True in the vertical layout."""
        return self.layout == "vertical"

    @property
    def total_rows(self) -> int:
        """The number of rows of all parties together."""
        rows = self.required_rows
        return rows if isinstance(rows, int) else sum(rows.values())

    @property
    def required_rows(self) -> int | dict[str, int]:
        """The number of rows; a ConfigError while nobody knows how many are common."""
        if self.rows is None:
            raise ConfigError(
                "the number of rows is known when they are aligned: run `veilmeans align` first; a dealer sets "
                "kmeans.rows to the number that it prints"
            )
        return self.rows

    @property
    def interval(self) -> tuple[float, float]:
        """The interval in which normalised values lie; for a prediction it is wider by the margin."""
        low, high = self.normalise.interval
        margin = 0.0 if self.predict is None else self.predict.margin * (high - low)
        return low - margin, high + margin

    @property
    def iterations(self) -> int:
        """The largest number of times that rows are assigned."""
        return self.max_iter if self.predict is None else 1

    @property
    def trims(self) -> bool:
        """True if outliers do not move the centroids."""
        return self.predict is None and self.outliers is not None and self.outliers.during_training

    @property
    def trained_starts(self) -> int:
        """The number of starts of a training; a prediction has the best one."""
        return self.starts if self.predict is None else 1

    @property
    def trained_clusters(self) -> int:
        """The number of clusters of all starts."""
        return self.clusters * self.trained_starts

    @property
    def seeds(self) -> int:
        """The number of centroids that k-means++ chooses: all but the first."""
        return self.clusters - 1 if self.predict is None and self.init.method == "k-means++" else 0

    @property
    def assigns_finally(self) -> bool:
        """True if rows are assigned once more after the last iteration of a training."""
        return self.final_assignment and self.predict is None

    @property
    def aggregates(self) -> bool:
        """True if statistics of all rows are opened; a prediction uses the model's scale."""
        return self.normalise.aggregate and self.predict is None

    def engines_of(self, party: str) -> ProductEnginesConfig:
        """The engines asked for a party's matrix; a prediction has no update, so its engine is the distance's."""
        asked = self.products.get(party, "auto") if isinstance(self.products, dict) else self.products
        engines = ProductEnginesConfig(distance=asked, update=asked) if isinstance(asked, str) else asked
        return engines if self.predict is None else engines.model_copy(update={"update": engines.distance})

    def _check_encoding(self) -> None:
        if not self.vertical and self.one_hot:
            raise ValueError("one_hot: only for layout vertical; name the categories in categories")
        named = (*self.categories, *self.one_hot, *self.multi_hot)
        for name in named:
            if named.count(name) > 1:
                raise ValueError(f"the column {name!r} is encoded twice, by categories, one_hot or multi_hot")
        for column, values in self.categories.items():
            if not values or len(set(values)) != len(values):
                raise ValueError(f"categories.{column}: must name at least one category, and none twice")

    def _check_outliers(self) -> None:
        if self.reveal.outliers and self.outliers is None:
            raise ValueError("reveal.outliers: needs kmeans.outliers, which says how many there are")
        for party in self.reveal.explanations:
            if party not in self.reveal.outliers:
                raise ValueError(f"reveal.explanations: {party!r} must be in reveal.outliers, too, to know their rows")
        if self.outliers is not None and self.rows and self.outliers.of(self.total_rows) >= self.total_rows:
            raise ValueError(f"outliers.count: must be below the number of rows, {self.total_rows:,}")
        if not self.final_assignment and (self.reveal.scores or self.outliers is not None):
            raise ValueError("final_assignment: must be true, because scores and outliers are by the final centroids")
        if self.reveal.inertia and self.trims:
            raise ValueError("reveal.inertia: must be empty, because centroids are no means with during_training")
        if self.starts > 1 and self.trims:
            raise ValueError("starts: must be 1, because centroids are no means with outliers.during_training")

    def _check_profiles(self) -> None:
        if self.label is not None and self.label in (self.id, *self.columns):
            raise ValueError(f"label: {self.label!r} must be neither the id nor one of the columns")
        if self.reveal.profiles and not self.final_assignment:
            raise ValueError("final_assignment: must be true, because profiles are of the final clusters")
        for party in self.reveal.profiles:
            columns = self.features if isinstance(self.features, int) else self.features.get(party, 0)
            if columns > MOST_PROFILE_COLUMNS:
                most = f"{MOST_PROFILE_COLUMNS:,} columns can have profiles"
                raise ValueError(f"reveal.profiles: {party!r} has {columns:,} columns, and at most {most}")

    def _check_minimum_size(self) -> None:
        """Refuse openings from which a small cluster's centroid, or single values, would follow."""
        least, reveal = self.reveal.minimum_size, self.reveal
        if not least:
            return
        if reveal.scores or reveal.contributions == "all":
            what = "scores" if reveal.scores else "contributions"
            raise ValueError(
                f"reveal.{what}: not with reveal.minimum_size, because centroids follow from rows' distances"
            )
        columns = self.features if isinstance(self.features, int) else sum(self.features.values())
        if reveal.inertia and columns == 1:
            raise ValueError("reveal.inertia: must be empty, because with minimum_size and one column centroids follow")
        minmax = self.normalise.method == "minmax" and least > 1
        if minmax and (self.normalise.aggregate or (self.vertical and reveal.columns == "all")):
            field = "normalise.aggregate" if self.normalise.aggregate else "reveal.columns"
            remedy = "agree on normalise.ranges" if self.normalise.aggregate else "set it to own"
            raise ValueError(
                f"{field}: a lowest or highest value is one row's, which reveal.minimum_size does not allow to be "
                f"opened: set normalise.method to zscore, or {remedy}"
            )

    def _check_sweep(self) -> None:
        if self.sweep is None:
            return
        if self.predict is not None:
            raise ValueError("sweep: must be none, because a prediction has the clusters of its model")
        if self.clusters != self.sweep[-1]:
            raise ValueError(f"clusters: must be {self.sweep[-1]:,}, the largest number in sweep")
        if self.init.indices is not None:
            raise ValueError("init.indices: must be none, because a sweep has several numbers of clusters")

    def with_clusters(self, clusters: int) -> "KMeansConfig":
        """The same job with so many clusters, and no sweep."""
        return self.model_copy(update={"clusters": clusters, "sweep": None})

    def _check_init(self) -> None:
        indices = self.init.indices
        if self.starts > 1 and indices is not None:
            raise ValueError("starts: must be 1, because init.indices names the rows of one start")
        if self.starts > 1 and not self.final_assignment:
            raise ValueError("final_assignment: must be true, because rows are assigned to the best of several starts")
        if indices is not None and len(indices) != self.clusters:
            raise ValueError(f"init.indices: {len(indices):,} rows for {self.clusters:,} clusters")
        if self.rows is None:
            return
        total = self.total_rows
        if self.clusters > total:
            raise ValueError(f"clusters: {self.clusters:,} clusters of {total:,} rows are not possible")
        if indices is not None and max(indices) >= total:
            raise ValueError(f"init.indices: row {max(indices):,} of {total:,}; rows are counted from 0")
