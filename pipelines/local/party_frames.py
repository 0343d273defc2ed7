"""Data in memory, as the parties' files: data frames, arrays and sparse matrices, one part for each party.

A data frame is any object with the Arrow or the data frame protocol. A table becomes a Parquet file, a sparse matrix an
.npz archive. Columns are numbers or text, without missing values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
import scipy.sparse
from numpy.typing import NDArray

from veilmeans.schemas.errors import InputError

_NUMBERS = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
_TEXT = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)


@dataclass(frozen=True, eq=False)
class PartyFrame:
    """One party's data: a table, or a sparse matrix, whose columns are called "0", "1", …"""

    data: "pa.Table | scipy.sparse.csr_array"

    @property
    def sparse(self) -> bool:
        return bool(scipy.sparse.issparse(self.data))

    @property
    def rows(self) -> int:
        return int(self.data.shape[0])

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(map(str, range(self.data.shape[1]))) if self.sparse else tuple(self.data.column_names)

    @cached_property
    def categories(self) -> dict[str, tuple[str, ...]]:
        """The values of each text column."""
        if self.sparse:
            return {}
        texts = [name for name in self.columns if not _is_number(self.data.schema.field(name).type)]
        return {name: tuple(sorted(self.data.column(name).unique().to_pylist())) for name in texts}

    @property
    def nonzeros(self) -> float:
        """The average number of nonzeros in a row of a sparse matrix."""
        return float(self.data.nnz / self.rows)

    def column_range(self, first: int, last: int) -> "PartyFrame":
        """Take the columns from `first` to before `last`."""
        return PartyFrame(self.data[:, first:last] if self.sparse else self.data.select(range(first, last)))

    def row_range(self, first: int, last: int) -> "PartyFrame":
        """Take the rows from `first` to before `last`."""
        return PartyFrame(self.data[first:last] if self.sparse else self.data.slice(first, last - first))

    def as_sparse(self, sparse: bool) -> "PartyFrame":
        """Convert to a sparse matrix, or to a table. A table with text columns stays a table."""
        if sparse == self.sparse or (sparse and self.categories):
            return self
        if self.sparse:
            return frame_from_array(self.data.toarray())
        return PartyFrame(scipy.sparse.csr_array(np.stack([column.to_numpy() for column in self.data.columns], axis=1)))

    def write(self, folder: Path) -> str:
        """Write the data to a file in `folder`, and return its name."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.sparse:
            scipy.sparse.save_npz(folder / "data.npz", self.data)
            return "data.npz"
        pa.parquet.write_table(self.data, folder / "data.parquet")
        return "data.parquet"


def is_frame(data: object) -> bool:
    """True if the columns have names and types."""
    return hasattr(data, "__arrow_c_stream__") or hasattr(data, "__dataframe__")


def frame_from_array(values: NDArray[Any], names: Sequence[str] | None = None) -> PartyFrame:
    """Make a PartyFrame from an array, dense or sparse, that was checked before."""
    if scipy.sparse.issparse(values):
        return PartyFrame(scipy.sparse.csr_array(values, dtype=np.float64))
    columns = [np.ascontiguousarray(column) for column in np.asarray(values, np.float64).T]
    return PartyFrame(pa.table(columns, names=[*(names or map(str, range(len(columns))))]))


def frame_from_table(frame: Any, what: str) -> PartyFrame:
    """Check a data frame and make a PartyFrame from it. `what`: its name in error messages."""
    table = _to_arrow(frame, what)
    double = [name for name in table.column_names if table.column_names.count(name) > 1]
    if double:
        raise InputError(f"{what} has more than one column {double[0]!r}")
    if not table.num_columns or not table.num_rows:
        raise InputError(f"{what} has {table.num_rows:,} rows, {table.num_columns:,} columns: at least one is needed")
    return PartyFrame(pa.table({name: _column(table.column(name), what, name) for name in table.column_names}))


def _to_arrow(frame: Any, what: str) -> pa.Table:
    try:
        if type(frame).__module__.partition(".")[0] == "pandas":
            return pa.Table.from_pandas(frame, preserve_index=False)
        if hasattr(frame, "__arrow_c_stream__"):
            return pa.table(frame)
        from pyarrow.interchange import from_dataframe

        return from_dataframe(frame)
    except (pa.ArrowException, TypeError, RuntimeError):
        raise InputError(f"{what} cannot be read: each column must hold only numbers or only text") from None


def _column(column: pa.ChunkedArray, what: str, name: str) -> pa.ChunkedArray:
    """Convert a column to a plain type; refuse missing values."""
    categorical = pa.types.is_dictionary(column.type)
    kind = column.type.value_type if categorical else column.type
    number, text = _is_number(kind), any(holds(kind) for holds in _TEXT)
    if not (number or text):
        raise InputError(f"{what}, column {name!r} holds {kind}: numbers or text are needed")
    values = column.cast(kind) if categorical else column
    if categorical or text:
        values = values.cast(pa.large_string())
        missing = pc.equal(values, "").fill_null(True)
    else:
        missing = pc.invert(pc.is_finite(values.cast(pa.float64(), safe=False))).fill_null(True)
    if pc.any(missing).as_py():
        row = pc.index(missing, True).as_py()
        raise InputError(f"{what} contains NaN, infinity or a missing value in the column {name!r}, row {row:,}")
    return values


def _is_number(kind: pa.DataType) -> bool:
    return any(holds(kind) for holds in _NUMBERS)


@dataclass(frozen=True)
class PartyFrames:
    """The parties' data, in the parties' order."""

    by_party: Mapping[str, PartyFrame]
    vertical: bool

    def __post_init__(self) -> None:
        if len(self.by_party) < 2:
            raise InputError(f"X has data of {', '.join(self.by_party) or 'nobody'}: at least two parties are needed")
        (first, known), *others = self.by_party.items()
        for name, each in others:
            if not self.vertical:
                check_columns(name, each.columns, known.columns, f"as {first} has them")
            elif each.rows != known.rows:
                raise InputError(f"{first} has {known.rows:,} rows and {name} {each.rows:,}: they must be the same")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.by_party)

    @property
    def first(self) -> PartyFrame:
        return next(iter(self.by_party.values()))

    @property
    def rows(self) -> int | dict[str, int]:
        """The value of `kmeans.rows` in a configuration."""
        return self.first.rows if self.vertical else {name: each.rows for name, each in self.by_party.items()}

    @property
    def total_rows(self) -> int:
        return self.first.rows if self.vertical else sum(each.rows for each in self.by_party.values())

    @property
    def features(self) -> int | dict[str, int]:
        """The value of `kmeans.features`: the number of columns after one-hot encoding of text."""
        return {name: self._width(name) for name in self.by_party} if self.vertical else self._width(self.names[0])

    @property
    def columns(self) -> list[str]:
        """The names of all columns; vertically each has its party's name before it."""
        if not self.vertical:
            return list(self.first.columns)
        return [f"{party}.{name}" for party, each in self.by_party.items() for name in each.columns]

    def encoding(self, party: str) -> dict[str, Any]:
        """The fields that encode a party's text: vertically it finds its own categories, horizontally all agree."""
        found = self._categories(party)
        return {"one_hot": list(found)} if self.vertical else {"categories": {k: list(v) for k, v in found.items()}}

    def _categories(self, party: str) -> dict[str, tuple[str, ...]]:
        """The values of each text column; horizontally those of all parties."""
        own = self.by_party[party].categories
        if self.vertical:
            return own
        everyone = [each.categories for each in self.by_party.values()]
        return {name: tuple(sorted({value for each in everyone for value in each.get(name, ())})) for name in own}

    def _width(self, party: str) -> int:
        found = self._categories(party)
        return len(self.by_party[party].columns) - len(found) + sum(map(len, found.values()))


def split_frame(
    frame: PartyFrame, names: Sequence[str], vertical: bool, widths: Sequence[int] | None = None
) -> PartyFrames:
    """Split a frame between the parties: by columns or by rows, evenly. `widths`: the number of columns of each."""
    size = len(frame.columns) if vertical else frame.rows
    if size < len(names):
        count = f"n_features={size}" if vertical else f"n_samples={size}"
        raise InputError(f"X has {count}, and each of the {len(names)} parties needs at least one")
    least, more = divmod(size, len(names))
    ends = [0, *np.cumsum(widths or [least + (i < more) for i in range(len(names))]).tolist()]
    take = frame.column_range if vertical else frame.row_range
    return PartyFrames({name: take(ends[i], ends[i + 1]) for i, name in enumerate(names)}, vertical)


def check_columns(party: str, found: Sequence[str], wanted: Sequence[str], why: str) -> None:
    """Refuse columns that are not those wanted, in the same order. `why`: the reason, for the error message."""
    if len(found) != len(wanted):
        raise InputError(f"{party} has {len(found):,} columns: {len(wanted):,} are needed, {why}")
    for number, (here, there) in enumerate(zip(found, wanted, strict=True)):
        if here != there:
            raise InputError(f"column {number:,} of {party} is {here!r}: it must be {there!r}, {why}")
