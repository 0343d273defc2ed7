"""What a configuration can ask for: a job and its parameters, checked when it is read."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FiniteFloat,
    field_validator,
    model_validator,
)

from veilmeans.schemas.address import NAME, NAME_RULE


class ConfigSection(BaseModel):
    """A part of a configuration: frozen, and with no field that the schema does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def _no_double(value: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(value)) != len(value):
        raise ValueError("a column stands there twice")
    return value


class SumsJob(ConfigSection):
    """Column sums and one inner product over the parties' columns about the same rows."""

    data: Path | None = Field(None, description="CSV or Parquet file with our columns (a dealer has none)")
    columns: tuple[str, ...] = Field((), description="our integer columns, in order")
    product: tuple[str, str] = Field(description='two columns "party.column" whose inner product is computed')
    bound: Annotated[int, Field(ge=1, lt=1 << 32)] = Field(
        description="every value is at most this in magnitude; agreed by all"
    )

    _columns = field_validator("columns")(_no_double)


def _as_text(value: object) -> object:
    """A category as it stands in the data: YAML makes numbers and truth values of some."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int) else value


Category = Annotated[str, BeforeValidator(_as_text), Field(min_length=1)]
Counts = int | dict[str, int]
"""One number, or one for each party."""


class NormaliseConfig(ConfigSection):
    """How values are brought to one scale: minmax to [0, 1], zscore to mean 0 and deviation 1, or none."""

    method: Literal["minmax", "zscore", "none"] = Field("minmax", description="agreed by all")
    bound: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None, description="largest magnitude of a normalised value; minmax: 1, zscore: 16 if not said; agreed by all"
    )
    ranges: dict[str, tuple[FiniteFloat, FiniteFloat]] | None = Field(
        None, description="minmax: column -> (lowest, highest) instead of what the data have; horizontal: agreed by all"
    )
    aggregate: bool = Field(
        False,
        description="horizontal: the statistics of all parties' rows together, computed on shares; opens, for each "
        "column, lowest and highest value (minmax) or mean and deviation (zscore) to all parties",
    )

    @property
    def interval(self) -> tuple[float, float]:
        """Where normalised values lie."""
        if self.method == "minmax":
            return 0.0, 1.0
        bound = 16.0 if self.bound is None else self.bound
        return -bound, bound

    @model_validator(mode="after")
    def _consistent(self) -> "NormaliseConfig":
        if self.method == "none" and self.bound is None:
            raise ValueError("bound: needed where nothing is normalised")
        if self.method == "minmax" and self.bound not in (None, 1):
            raise ValueError("bound: minmax has the bound 1")
        if self.ranges is not None and self.method != "minmax":
            raise ValueError("ranges: only for minmax")
        if self.aggregate and (self.ranges is not None or self.method == "none"):
            raise ValueError("aggregate: only for minmax or zscore, and not beside ranges")
        for column, (low, high) in (self.ranges or {}).items():
            if not low < high:
                raise ValueError(f"ranges.{column}: the lowest value must be below the highest")
        return self


class InitConfig(ConfigSection):
    """Where the centroids start."""

    method: Literal["random", "indices", "local"] = Field(
        "indices",
        description="random: values drawn from the seed; indices: k rows drawn from the seed, or those named; local: "
        "each party's own plaintext k-means",
    )
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = Field(0, description="agreed by all; public")
    indices: tuple[Annotated[int, Field(ge=0)], ...] | None = Field(
        None, description="indices: the rows, counted from 0 (horizontal: over all parties' rows in their order)"
    )

    @model_validator(mode="after")
    def _consistent(self) -> "InitConfig":
        if self.indices is not None and self.method != "indices":
            raise ValueError("indices: only for the method indices")
        if self.indices is not None and len(set(self.indices)) != len(self.indices):
            raise ValueError("indices: a row stands there twice")
        return self


Engine = Literal["auto", "beaver", "he"]


class ProductEnginesConfig(ConfigSection):
    """How the products with one party's matrix are computed."""

    distance: Engine = Field("auto", description="of X·μᵀ")
    update: Engine = Field("auto", description="of Xᵀ·C")


class SparseConfig(ConfigSection):
    """What all may know of one party's matrix before they see a message."""

    nonzeros: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = Field(
        None, description="values other than zero in a row, on average; auto goes by it; none: as many as columns"
    )
    whole: bool = Field(False, description="normalised values are whole numbers (one-hot): `he` is faster then")


class CipherConfig(ConfigSection):
    """The homomorphic encryption of the engine `he`."""

    scheme: Literal["okamoto-uchiyama", "paillier"] = Field(
        "okamoto-uchiyama", description="paillier is slower by far, for comparison; it needs veilmeans[paillier]"
    )
    bits: Literal[2048, 3072] = Field(2048, description="length of the modulus: 112 or 128 bits of security")


class RevealConfig(ConfigSection):
    """What is opened at the end, and to whom. What is not named stays a share on disk (`veilmeans reveal` opens it)."""

    assignments: tuple[str, ...] = Field((), description="who learns each row's cluster")
    centroids: tuple[str, ...] = Field((), description="who learns centroids, in original units")
    columns: Literal["own", "all"] = Field(
        "own",
        description="vertical: centroids of one's own columns, or of all; all tells the scale of each column, too "
        "(what normalise found: lowest and highest value, or mean and deviation)",
    )
    inertia: tuple[str, ...] = Field((), description="who learns the sum of squared distances to the centroids")


class PredictConfig(ConfigSection):
    """Assign new rows to the clusters of a trained model, which stays shared."""

    model: str = Field(description="the run that was trained; agreed by all")
    margin: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        1.0,
        description="how far new values may lie outside the interval of normalised ones, in widths of it on each side; "
        "a few bits more in each comparison; agreed by all",
    )
    outside: Literal["error", "clip"] = Field(
        "error", description="a value that is farther outside; clip: it counts as the farthest that may be; our own"
    )

    @field_validator("model")
    @classmethod
    def _model(cls, value: str) -> str:
        if not NAME.fullmatch(value):
            raise ValueError(f"{value!r} must be {NAME_RULE}")
        return value


class KMeansConfig(ConfigSection):
    """K-means over all parties' rows or columns. All fields from layout on are agreed by all, but for
    iterations_per_pipeline and predict.outside; the others are about our own data."""

    data: str | None = Field(
        None,
        description="our data: a Parquet, CSV, Arrow IPC, .npz or svmlight file, or a glob, on any Beam filesystem",
    )
    id: str | None = Field(None, description="our column with the rows' ids (vertical: same ids in the same order)")
    columns: tuple[str, ...] = Field(
        (),
        description="our columns, in order; none: all but the id; of .npz and svmlight files, whose columns have no "
        'names, numbers from 0 and runs of them ("7", "0-61"), ascending',
    )
    categories: dict[str, tuple[Category, ...]] = Field(
        {}, description="column -> its categories; each becomes a column of 0 and 1; horizontal: agreed by all"
    )
    one_hot: tuple[str, ...] = Field((), description="vertical: columns whose categories are found in our data")
    unseen: Literal["error", "ignore"] = Field(
        "error", description="a value that is none of the declared categories; ignore: all its columns are 0"
    )
    multi_hot: dict[str, Annotated[int, Field(ge=1, lt=1 << 31)]] = Field(
        {}, description="column with lists of whole numbers from 0 -> how many there are; each becomes a column"
    )
    missing: Literal["error", "zero", "mean"] = Field(
        "error",
        description="a value that is empty, null or not a number; zero: 0, mean: the column's mean in our rows; "
        "categories and lists: all their columns are 0",
    )
    layout: Literal["vertical", "horizontal"] = Field(
        description="vertical: same rows, each party its own columns; horizontal: same columns, each its own rows"
    )
    rows: Counts = Field(description="vertical: how many rows; horizontal: how many each party has")
    features: Counts = Field(description="vertical: how many columns each party has; horizontal: how many columns")
    clusters: Annotated[int, Field(ge=1, le=1024)] = Field(description="k")
    max_iter: Annotated[int, Field(ge=1)] = Field(10, description="iterations at most")
    tol: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        1e-4,
        description="stop when the centroids' squared movement is below this in sum; 0: never, and nothing is opened",
    )
    iterations_per_pipeline: Annotated[int, Field(ge=1, le=100)] | None = Field(
        None,
        description="iterations in one Beam pipeline, more for engines that are slow to start one; none: 10 where an "
        "iteration is one call (engine.rounds), else 1",
    )
    init: InitConfig = InitConfig()
    normalise: NormaliseConfig = NormaliseConfig()
    products: Engine | dict[str, Engine | ProductEnginesConfig] = Field(
        "auto",
        description="how products with a party's matrix are computed: beaver (masked matrix once per run; dense), he "
        "(homomorphic, nothing of the matrix's size is sent; wide and sparse), or auto; for all, or for each party, or "
        "for each party's distance and update",
    )
    sparse: dict[str, SparseConfig] = Field({}, description="party -> what is public about its matrix")
    cipher: CipherConfig = CipherConfig()
    drop_bits: Annotated[int, Field(ge=0, le=32)] | None = Field(
        None, description="low bits of distances that comparisons leave out; none: as many as make them 32 bits wide"
    )
    reveal: RevealConfig = RevealConfig()
    predict: PredictConfig | None = Field(
        None, description="none: this job trains; else it assigns new rows to the clusters of a trained model"
    )

    _columns = field_validator("columns")(_no_double)

    @field_validator("rows", "features")
    @classmethod
    def _counts(cls, value: Counts) -> Counts:
        if min(value.values() if isinstance(value, dict) else [value]) < 1:
            raise ValueError("must be at least 1")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> "KMeansConfig":
        vertical = self.layout == "vertical"
        if isinstance(self.rows, int) != vertical:
            raise ValueError(f"rows: must be {'one number' if vertical else 'one number for each party'}")
        if isinstance(self.features, int) == vertical:
            raise ValueError(f"features: must be {'one number for each party' if vertical else 'one number'}")
        if vertical and self.normalise.aggregate:
            raise ValueError("normalise.aggregate: only for the horizontal layout; a column has one owner here")
        common = self.normalise.aggregate or self.normalise.ranges is not None or self.normalise.method == "none"
        if not vertical and not common:
            raise ValueError("normalise: the horizontal layout needs ranges that all agree on, or aggregate: true")
        self._check_encoding()
        if self.predict is None:
            self._check_start()
        else:
            self._check_opened()
        return self

    @property
    def interval(self) -> tuple[float, float]:
        """Where normalised values lie; those of new rows may lie farther out."""
        low, high = self.normalise.interval
        margin = 0.0 if self.predict is None else self.predict.margin * (high - low)
        return low - margin, high + margin

    @property
    def iterations(self) -> int:
        """How many times rows are assigned, at most."""
        return self.max_iter if self.predict is None else 1

    @property
    def aggregates(self) -> bool:
        """Whether statistics of all rows are opened; new rows are scaled as the trained ones were."""
        return self.normalise.aggregate and self.predict is None

    def engines_of(self, party: str) -> ProductEnginesConfig:
        """What is asked for a party's matrix; a prediction has no update, which then decides nothing."""
        asked = self.products.get(party, "auto") if isinstance(self.products, dict) else self.products
        engines = ProductEnginesConfig(distance=asked, update=asked) if isinstance(asked, str) else asked
        return (
            engines
            if self.predict is None
            else ProductEnginesConfig(distance=engines.distance, update=engines.distance)
        )

    def _check_encoding(self) -> None:
        if self.layout == "horizontal" and self.one_hot:
            raise ValueError("one_hot: the horizontal layout needs categories that all agree on, in categories")
        named = (*self.categories, *self.one_hot, *self.multi_hot)
        double = [name for name in named if named.count(name) > 1]
        if double:
            raise ValueError(f"the column {double[0]!r} is encoded twice: categories, one_hot and multi_hot share none")
        for column, values in self.categories.items():
            if not values or len(set(values)) != len(values):
                raise ValueError(f"categories.{column}: there must be some, and none twice")

    def _check_opened(self) -> None:
        for what in ("centroids", "inertia"):
            if getattr(self.reveal, what):
                raise ValueError(f"reveal.{what}: must be empty, because a prediction opens assignments only")

    def _check_start(self) -> None:
        total = self.rows if isinstance(self.rows, int) else sum(self.rows.values())
        if self.clusters > total:
            raise ValueError(f"clusters: {self.clusters:,} clusters of {total:,} rows are not possible")
        if self.init.indices is not None:
            if len(self.init.indices) != self.clusters:
                raise ValueError(f"init.indices: {len(self.init.indices):,} rows for {self.clusters:,} clusters")
            if max(self.init.indices) >= total:
                raise ValueError(f"init.indices: row {max(self.init.indices):,} of {total:,}; they count from 0")
