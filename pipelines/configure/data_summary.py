"""Show a party how its own data would be used (`veilmeans inspect`).

For this party only: the columns' ranges are printed on its terminal, and nothing is sent or logged.
"""

from collections.abc import Iterator
from itertools import islice

from rich.console import Group
from rich.table import Table

from veilmeans.io.sources.column_encoding import HOT, ColumnEncoding
from veilmeans.io.sources.scaling import Scaling
from veilmeans.io.sources.scan import Scan
from veilmeans.io.sources.sparse_matrices import states_width
from veilmeans.io.sources.tables import table_types
from veilmeans.pipelines.session.own_data import encode_data, local_scaling
from veilmeans.pipelines.session.trained_model import TrainedModel
from veilmeans.schemas.column_names import list_briefly
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import VeilmeansError

MAX_COLUMNS_SHOWN = 20
"""Columns that have a line of their own."""


def show_data(config: JobConfig, scan: Scan, model: TrainedModel | None) -> Group:
    """Return a table of the columns and a table of totals. `model`: of a prediction."""
    scaling, reason = _try_scaling(config, scan, model)
    return Group(_column_table(config, scan, scaling), _totals_table(config, scan, scaling, reason))


def _try_scaling(config: JobConfig, scan: Scan, model: TrainedModel | None) -> tuple[Scaling | None, str]:
    """Return the scaling, or None and the reason why there is none."""
    try:
        return local_scaling(config, scan, model), "follows when all parties' statistics are known"
    except VeilmeansError as error:
        return None, error.sentence


def _column_table(config: JobConfig, scan: Scan, scaling: Scaling | None) -> Table:
    count = sum(field.width if field.kind == "matrix" else 1 for field in scan.fields)
    table = Table("column", "type", "encoding", "zeros", "lowest", "highest", "scaling", title=str(scan.source))
    table.caption = f"… and {count - MAX_COLUMNS_SHOWN:,} more columns" if count > MAX_COLUMNS_SHOWN else None
    for name, kind, encoding, encoded in islice(_source_columns(scan), MAX_COLUMNS_SHOWN):
        zeros = 1 - sum(scan.nonzeros[encoded]) / (scan.rows * (encoded.stop - encoded.start))
        low, high = min(scan.low[encoded]), max(scan.high[encoded])
        scale = _scale(config, scaling, encoded.start)
        table.add_row(name, kind, encoding, f"{zeros:.1%}", f"{low:g}", f"{high:g}", scale)
    return table


def _source_columns(scan: Scan) -> Iterator[tuple[str, str, str, slice]]:
    """Yield name, type and encoding of each column of the source, and the encoded columns that it becomes."""
    if scan.fields[0].kind == "matrix":
        for i, name in enumerate(scan.columns):
            yield name, "sparse", "number, zeros stay zeros", slice(i, i + 1)
        return
    kinds, first = table_types(scan.files[0]), 0
    for field in scan.fields:
        yield field.name, kinds[field.name], _encoding(field), slice(first, first + field.width)
        first += field.width


def _encoding(field: ColumnEncoding) -> str:
    if field.kind == "one_hot":
        return f"{field.width:,} categories: {list_briefly(field.values)}"
    if field.kind == "multi_hot":
        return f"lists of numbers below {field.width:,}"
    return "number" if field.missing == "error" else f"number, {field.missing} for missing values"


def _scale(config: JobConfig, scaling: Scaling | None, column: int) -> str:
    """Name the original values that become the ends of the interval of normalised values."""
    if scaling is None:
        return "–"
    shift, factor = scaling.shift[column], scaling.factor[column]
    low, high = config.kmeans_with_data.interval
    if factor == 0:
        return "constant → 0"
    if (shift, factor) == (0, 1):
        return "as it is"
    return f"[{shift + low / factor:g}, {shift + high / factor:g}] → [{low:g}, {high:g}]"


def _totals_table(config: JobConfig, scan: Scan, scaling: Scaling | None, reason: str) -> Table:
    rows = None if config.unaligned else config.declared_shape[0]
    low, high = config.kmeans_with_data.interval
    table = Table("all columns", "", show_header=False)
    for what, state in (
        ("files", f"{len(scan.files):,}: {list_briefly(scan.files)}"),
        ("rows", f"{scan.rows:,}, not aligned yet" if rows is None else _compared(scan.rows, "kmeans.rows", rows)),
        ("columns after encoding", _compared(len(scan.columns), "kmeans.features", config.declared_features)),
        ("of them 0 or 1", f"{sum(field.width for field in scan.fields if field.kind in HOT):,}"),
        ("nonzeros in a row", f"{sum(scan.nonzeros) / scan.rows:,.1f} on average, before scaling"),
        ("normalised values", f"within [{low:g}, {high:g}]"),
        *_encoding_rows(config, scan, scaling, reason),
    ):
        table.add_row(what, state)
    if not states_width(scan.files[0]):
        table.add_row("svmlight indices", f"count from {scan.fields[0].base}")
    return table


def _compared(found: int, field: str, declared: int) -> str:
    return f"{found:,}, as in {field}" if found == declared else f"{found:,}, but {field} is {declared:,}: correct it"


def _encoding_rows(config: JobConfig, scan: Scan, scaling: Scaling | None, reason: str) -> list[tuple[str, str]]:
    if scaling is None:
        return [("encoding", reason)]
    try:
        prepared = encode_data(config, scan, scaling)
    except VeilmeansError as error:
        return [("encoding", error.sentence)]
    return [
        ("encoding", f"{prepared.shards:,} shards, {sum(prepared.nonzeros) / scan.rows:,.1f} nonzeros in a row"),
        ("integer-valued", "yes" if prepared.integer_valued else "no"),
    ]
