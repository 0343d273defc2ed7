"""The first pass over a party's source: every value is checked, and each column's statistics are computed."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import compress

from veilmeans.crypto import ring
from veilmeans.io.sources.column_encoding import (
    ColumnEncoding,
    EncodingRules,
    Fields,
    TableEncoding,
    columns_of_kind,
    encoded_names,
)
from veilmeans.io.sources.column_statistics import ExactSums, collect_statistics
from veilmeans.io.sources.source_files import DEFAULT_LIMITS, BatchLimits, Source, find_files, format_of
from veilmeans.io.sources.sparse_matrices import is_matrix, matrix_width, parse_column_ranges, states_width
from veilmeans.io.sources.tables import table_columns
from veilmeans.schemas.errors import InputError


@dataclass(frozen=True)
class Scan:
    """The result of the first pass over a source."""

    source: Source
    content: str  # hex SHA-256 of the rows as they were read (`row_digest`)
    digest: str  # hex SHA-256 of the content and of the configured encoding
    rows: int
    fields: Fields
    id: str | None
    low: tuple[float, ...]
    high: tuple[float, ...]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    nonzeros: tuple[int, ...]
    ids: str  # hex SHA-256 of the ids in order, each as text with its length before it; empty if there is no id
    sums: ring.Ring | None = field(default=None, compare=False)  # exact sums of the numbers, if they were asked for
    label: str | None = None

    @property
    def required_sums(self) -> ring.Ring:
        """The exact sums, which must have been asked for."""
        if self.sums is None:
            raise ValueError(f"{self.source} was scanned without exact sums")
        return self.sums

    @property
    def files(self) -> tuple[str, ...]:
        """The source's files."""
        return self.source.files

    @cached_property
    def columns(self) -> Sequence[str]:
        """The names of the encoded columns."""
        return encoded_names(self.fields)

    @property
    def encoding(self) -> TableEncoding:
        """The encoding by which new rows become the same columns."""
        return TableEncoding(self.fields, tuple(compress(self.mean, columns_of_kind(self.fields, "number"))))


def scan_source(
    name: str,
    columns: Sequence[str],
    id_column: str | None,
    features: int | None = None,
    rules: EncodingRules | None = None,
    model_fields: Fields | None = None,
    exact_sums: ExactSums | None = None,
    limits: BatchLimits = DEFAULT_LIMITS,
    label: str | None = None,
) -> Scan:
    """Check a source and compute its statistics; no columns: all but id and label.

    `features`: the number of columns of a file that does not state it. `model_fields`: the fields of a model's rows, by
    which these rows are to be encoded. `exact_sums`: a function that sums rows exactly, if such sums are needed.
    """
    source = Source(name, find_files(name), limits)
    if model_fields is None:
        fields = _configured_fields(source, columns, id_column, features, rules or EncodingRules(), label)
    else:
        fields = _check_model_fields(source, id_column, model_fields)
    read = collect_statistics(source, fields, id_column, model_fields is not None, exact_sums, label)
    labelled = [] if label is None else [label]
    work = ["scan 3", read.content, [asdict(field) for field in fields], id_column, model_fields is not None, *labelled]
    digest = hashlib.sha256(json.dumps(work).encode()).hexdigest()
    statistics = (read.moments.low, read.moments.high, read.mean, read.deviation, read.moments.nonzeros)
    low, high, mean, deviation, nonzeros = (tuple(values.tolist()) for values in statistics)
    rows = (source, read.content, digest, read.rows)
    return Scan(*rows, read.fields, id_column, low, high, mean, deviation, nonzeros, read.ids, read.sums, label)


def _configured_fields(
    source: Source,
    columns: Sequence[str],
    id_column: str | None,
    features: int | None,
    rules: EncodingRules,
    label: str | None,
) -> Fields:
    """Return the fields, as far as they are known before the rows are read."""
    file = source.files[0]
    sparse = is_matrix(file)
    _check_id(file, id_column)
    if label is not None and format_of(file) in ("npz", "svmlight"):
        raise InputError(f"{file} holds no labels: leave out kmeans.label")
    if not sparse:
        return rules.fields(file, _table_columns(source, columns, id_column, label))
    rules.fields(file, ())
    if columns:
        chosen = parse_column_ranges(file, columns)
        field = ColumnEncoding("", "matrix", sum(last - first for first, last in chosen), chosen=chosen)
        _check_last_column(source.files, field)
        return (field,)
    width = matrix_width(source.files) if states_width(file) else features
    if width is None:
        raise InputError(f"{file} does not state how many columns it has: set kmeans.features")
    return (ColumnEncoding("", "matrix", width),)


def _check_model_fields(source: Source, id_column: str | None, fields: Fields) -> Fields:
    """Check that the source can have all fields of a model."""
    file, matrix = source.files[0], fields[0].kind == "matrix"
    if is_matrix(file) != matrix:
        kinds = ("a table", "a sparse matrix")
        raise InputError(f"{file} is {kinds[not matrix]}, and the rows of the model were {kinds[matrix]}")
    _check_id(file, id_column)
    if not matrix:
        if id_column in [field.name for field in fields]:
            raise InputError(f"{file}, column {id_column!r} is the id and cannot be one of the model's columns, too")
        return fields
    if not fields[0].chosen and states_width(file) and matrix_width(source.files) != fields[0].width:
        raise InputError(f"{file} has {matrix_width(source.files):,} columns, and the model has {fields[0].width:,}")
    _check_last_column(source.files, fields[0])
    return fields


def _check_id(file: str, id_column: str | None) -> None:
    if id_column is not None and format_of(file) in ("npz", "svmlight"):
        raise InputError(f"{file} holds no ids: leave out kmeans.id; its rows count in their order")


def _check_last_column(files: Sequence[str], field: ColumnEncoding) -> None:
    """Check that the matrix has the last of the chosen columns."""
    last = field.chosen[-1][1] if field.chosen else 0
    if states_width(files[0]) and last > (width := matrix_width(files)):
        raise InputError(f"{files[0]} has {width:,} columns, counted from 0, and kmeans.columns asks for {last - 1:,}")


def _table_columns(source: Source, columns: Sequence[str], id_column: str | None, label: str | None) -> tuple[str, ...]:
    file = source.files[0]
    if format_of(file) == "npz":
        columns = [str(number) for first, last in parse_column_ranges(file, columns) for number in range(first, last)]
    if id_column in columns:
        raise InputError(f"{file}, column {id_column!r} is the id and cannot be one of the columns, too")
    others = (name for name in table_columns(file, source.limits) if name not in (id_column, label))
    chosen = tuple(columns) or tuple(others)
    if not chosen:
        raise InputError(f"{file} has no column but the id{'' if label is None else ' and the label'}")
    return chosen
