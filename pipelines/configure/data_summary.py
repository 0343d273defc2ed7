"""`veilmeans inspect`: what would be used of this party's data, and how. It is for the party's own eyes: the columns'
ranges are shown on its terminal, and nothing is sent or logged."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from rich.console import Group
from rich.table import Table

from veilmeans.io.sources.column_encoding import HOT, ColumnEncoding
from veilmeans.io.sources.scaling import Scaling
from veilmeans.io.sources.scan import Scan
from veilmeans.io.sources.sparse_matrices import tells_width
from veilmeans.io.sources.tables import types_of
from veilmeans.pipelines.session.own_data import encode_data, local_scaling, scan_own_data
from veilmeans.schemas.column_names import brief
from veilmeans.schemas.config import JobConfig, declared_shape, kmeans_with_data
from veilmeans.schemas.errors import VeilmeansError

SHOWN = 20
"""Columns that are shown one by one."""


@dataclass(frozen=True)
class Shown:
    """A field of the source, or one column of a sparse matrix: its name, its kind, and which columns it becomes."""

    name: str
    kind: str
    encoding: str
    columns: slice


def show_data(config: JobConfig) -> Group:
    """The columns, one by one, and what they are together."""
    scan = scan_own_data(config)
    scaling, trouble = _try_scaling(config, scan)
    return Group(_columns(config, scan, scaling), _together(config, scan, scaling, trouble))


def _try_scaling(config: JobConfig, scan: Scan) -> tuple[Scaling | None, str]:
    """The scaling if there is one, or why there is none."""
    try:
        return local_scaling(config, scan), "known when all parties' statistics are"
    except VeilmeansError as error:
        return None, error.sentence


def _columns(config: JobConfig, scan: Scan, scaling: Scaling | None) -> Table:
    every = sum(field.width if field.kind == "matrix" else 1 for field in scan.fields)
    caption = f"… and {every - SHOWN:,} more columns" if every > SHOWN else None
    table = Table("column", "type", "encoding", "zeros", "lowest", "highest", "scaling", title=scan.source)
    table.caption = caption
    for shown in islice(_shown(scan), SHOWN):
        part = shown.columns
        zeros = 1 - sum(scan.nonzeros[part]) / (scan.rows * (part.stop - part.start))
        low, high = min(scan.low[part]), max(scan.high[part])
        scale = _scale(config, scaling, part.start)
        table.add_row(shown.name, shown.kind, shown.encoding, f"{zeros:.1%}", f"{low:g}", f"{high:g}", scale)
    return table


def _shown(scan: Scan) -> Iterator[Shown]:
    if scan.fields[0].kind == "matrix":
        for i, name in enumerate(scan.columns):
            yield Shown(name, "sparse", "number, zeros stay zeros", slice(i, i + 1))
        return
    kinds, first = types_of(scan.files[0]), 0
    for field in scan.fields:
        yield Shown(field.name, kinds[field.name], _encoding(field), slice(first, first + field.width))
        first += field.width


def _encoding(field: ColumnEncoding) -> str:
    if field.kind == "one_hot":
        return f"{field.width:,} categories: {brief(field.values)}"
    if field.kind == "multi_hot":
        return f"lists of numbers below {field.width:,}"
    return "number" if field.missing == "error" else f"number, {field.missing} for what is missing"


def _scale(config: JobConfig, scaling: Scaling | None, column: int) -> str:
    """Which original values become the ends of the interval of normalised ones."""
    if scaling is None:
        return "–"
    shift, factor = scaling.shift[column], scaling.factor[column]
    low, high = kmeans_with_data(config).interval
    if factor == 0:
        return "constant → 0"
    if (shift, factor) == (0, 1):
        return "as it is"
    return f"[{shift + low / factor:g}, {shift + high / factor:g}] → [{low:g}, {high:g}]"


def _together(config: JobConfig, scan: Scan, scaling: Scaling | None, trouble: str) -> Table:
    rows, features = declared_shape(config, kmeans_with_data(config))
    low, high = kmeans_with_data(config).interval
    table = Table("all columns", "", show_header=False)
    for what, state in (
        ("files", f"{len(scan.files):,}: {brief(scan.files)}"),
        ("rows", _against(scan.rows, "kmeans.rows", rows)),
        ("columns after encoding", _against(len(scan.columns), "kmeans.features", features)),
        ("of them 0 or 1", f"{sum(field.width for field in scan.fields if field.kind in HOT):,}"),
        ("nonzeros in a row", f"{sum(scan.nonzeros) / scan.rows:,.1f} on average, before scaling"),
        ("normalised values", f"within [{low:g}, {high:g}]"),
        *_encoded(config, scan, scaling, trouble),
    ):
        table.add_row(what, state)
    if not tells_width(scan.files[0]):
        table.add_row("svmlight indices", f"count from {scan.fields[0].base}")
    return table


def _against(found: int, name: str, said: int) -> str:
    return f"{found:,}, as {name} says" if found == said else f"{found:,}, but {name} is {said:,}: correct it"


def _encoded(config: JobConfig, scan: Scan, scaling: Scaling | None, trouble: str) -> list[tuple[str, str]]:
    if scaling is None:
        return [("encoding", trouble)]
    try:
        prepared = encode_data(config, scan, scaling)
    except VeilmeansError as error:
        return [("encoding", error.sentence)]
    return [
        ("encoding", f"{prepared.shards:,} shards, {sum(prepared.nonzeros) / scan.rows:,.1f} nonzeros in a row"),
        ("whole numbers", "all" if prepared.whole else "not all"),
    ]
