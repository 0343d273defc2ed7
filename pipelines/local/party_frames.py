"""Data in memory as a party's file: frames of all who speak Arrow or the data frame protocol, arrays, sparse matrices.

A table becomes Parquet, a sparse matrix an .npz archive. Columns are numbers or text; nothing may be missing.
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
    """What one party has: a table, or a sparse matrix, whose columns are "0", "1", …"""

    data: "pa.Table | scipy.sparse.csr_array"

    @property
    def sparse(self) -> bool:
        return bool(scipy.sparse.issparse(self.data))

    @property
    def rows(self) -> int:
        return int(self.data.shape[0])

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The columns' names."""
        return tuple(map(str, range(self.data.shape[1]))) if self.sparse else tuple(self.data.column_names)

    @cached_property
    def categories(self) -> dict[str, tuple[str, ...]]:
        """Each column of text with its values."""
        if self.sparse:
            return {}
        texts = [name for name in self.columns if not _is_number(self.data.schema.field(name).type)]
        return {name: tuple(sorted(self.data.column(name).unique().to_pylist())) for name in texts}

    @property
    def nonzeros(self) -> float:
        """Values other than zero in a row of a sparse matrix, on average."""
        return float(self.data.nnz / self.rows)

    def columns_from(self, first: int, last: int) -> "PartyFrame":
        """Some of the columns."""
        chosen = self.data[:, first:last] if self.sparse else self.data.select(range(first, last))
        return PartyFrame(chosen)

    def rows_from(self, first: int, last: int) -> "PartyFrame":
        """Some of the rows."""
        return PartyFrame(self.data[first:last] if self.sparse else self.data.slice(first, last - first))

    def kept_as(self, sparse: bool) -> "PartyFrame":
        """The same as a table or as a sparse matrix; columns of text are in tables only."""
        if sparse == self.sparse or (sparse and self.categories):
            return self
        if self.sparse:
            return array_held(self.data.toarray())
        return PartyFrame(scipy.sparse.csr_array(np.stack([column.to_numpy() for column in self.data.columns], axis=1)))

    def write(self, folder: Path) -> str:
        """The name of the file."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.sparse:
            scipy.sparse.save_npz(folder / "data.npz", self.data)
            return "data.npz"
        pa.parquet.write_table(self.data, folder / "data.parquet")
        return "data.parquet"


def is_frame(data: object) -> bool:
    """Whether the columns have names and types."""
    return hasattr(data, "__arrow_c_stream__") or hasattr(data, "__dataframe__")


def array_held(values: NDArray[Any], names: Sequence[str] | None = None) -> PartyFrame:
    """A checked array, dense or sparse."""
    if scipy.sparse.issparse(values):
        return PartyFrame(scipy.sparse.csr_array(values, dtype=np.float64))
    columns = [np.ascontiguousarray(column) for column in np.asarray(values, np.float64).T]
    return PartyFrame(pa.table(columns, names=[*(names or map(str, range(len(columns))))]))


def frame_held(frame: Any, what: str) -> PartyFrame:
    """A frame, checked; `what` it is, for the sentence that refuses it."""
    table = _to_arrow(frame, what)
    double = [name for name in table.column_names if table.column_names.count(name) > 1]
    if double:
        raise InputError(f"{what} has more than one column {double[0]!r}")
    if not table.num_columns or not table.num_rows:
        raise InputError(f"{what} has {table.num_rows:,} rows and {table.num_columns:,} columns: one is the least")
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
        raise InputError(f"{what} cannot be read: each column must hold numbers or text, and nothing else") from None


def _column(column: pa.ChunkedArray, what: str, name: str) -> pa.ChunkedArray:
    """The column in a plain type, with no value missing."""
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
        raise InputError(f"{what} contains NaN, infinity or nothing in the column {name!r}, row {row:,}")
    return values


def _is_number(kind: pa.DataType) -> bool:
    return any(holds(kind) for holds in _NUMBERS)


@dataclass(frozen=True)
class PartyFrames:
    """Each party's part, in the parties' order."""

    held: Mapping[str, PartyFrame]
    vertical: bool

    def __post_init__(self) -> None:
        if len(self.held) < 2:
            raise InputError(f"X has parts of {', '.join(self.held) or 'nobody'}: two parties are the least")
        (first, known), *others = self.held.items()
        for name, each in others:
            if not self.vertical:
                check_columns(name, each.columns, known.columns, f"as {first} has them")
            elif each.rows != known.rows:
                raise InputError(f"{first} has {known.rows:,} rows and {name} {each.rows:,}: they must be the same")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.held)

    @property
    def first(self) -> PartyFrame:
        return next(iter(self.held.values()))

    @property
    def rows(self) -> int | dict[str, int]:
        """`kmeans.rows` of a configuration."""
        return self.first.rows if self.vertical else {name: each.rows for name, each in self.held.items()}

    @property
    def total_rows(self) -> int:
        return self.first.rows if self.vertical else sum(each.rows for each in self.held.values())

    @property
    def features(self) -> int | dict[str, int]:
        """`kmeans.features`: how many columns there are when text has become columns of 0 and 1."""
        return {name: self._width(name) for name in self.held} if self.vertical else self._width(self.names[0])

    @property
    def columns(self) -> list[str]:
        """The names of all columns, vertically with their party's."""
        if not self.vertical:
            return list(self.first.columns)
        return [f"{party}.{name}" for party, each in self.held.items() for name in each.columns]

    def encoding(self, party: str) -> dict[str, Any]:
        """How a party's text is encoded: vertically it finds the categories itself, else all agree on them."""
        found = self._categories(party)
        return {"one_hot": list(found)} if self.vertical else {"categories": {k: list(v) for k, v in found.items()}}

    def _categories(self, party: str) -> dict[str, tuple[str, ...]]:
        """The values of each column of text; horizontally those of everyone's."""
        own = self.held[party].categories
        if self.vertical:
            return own
        everyone = [each.categories for each in self.held.values()]
        return {name: tuple(sorted({value for each in everyone for value in each.get(name, ())})) for name in own}

    def _width(self, party: str) -> int:
        found = self._categories(party)
        return len(self.held[party].columns) - len(found) + sum(map(len, found.values()))


def split(whole: PartyFrame, names: Sequence[str], vertical: bool, widths: Sequence[int] | None = None) -> PartyFrames:
    """What is of all, cut into the parties' parts: by columns (`widths`: how many each has) or by rows, evenly."""
    size = len(whole.columns) if vertical else whole.rows
    if size < len(names):
        what = f"n_features={size}" if vertical else f"n_samples={size}"
        raise InputError(f"X has {what}, and each of the {len(names)} parties needs one at least")
    least, more = divmod(size, len(names))
    ends = [0, *np.cumsum(widths or [least + (i < more) for i in range(len(names))]).tolist()]
    cut = whole.columns_from if vertical else whole.rows_from
    return PartyFrames({name: cut(ends[i], ends[i + 1]) for i, name in enumerate(names)}, vertical)


def check_columns(party: str, found: Sequence[str], wanted: Sequence[str], why: str) -> None:
    """Refuse other columns, or others in their place."""
    if len(found) != len(wanted):
        raise InputError(f"{party} has {len(found):,} columns: {len(wanted):,} are needed, {why}")
    for number, (here, there) in enumerate(zip(found, wanted, strict=True)):
        if here != there:
            raise InputError(f"column {number:,} of {party} is {here!r}: it must be {there!r}, {why}")
