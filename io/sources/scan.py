"""The first pass over a party's source, block by block: every value is checked, each column's statistics are found.

The result is kept, and an unchanged source is not read again.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilmeans.io.sources.column_encoding import (
    ColumnEncoding,
    EncodingRules,
    TableEncoding,
    fields_from,
    names_of,
    of_kind,
)
from veilmeans.io.sources.column_statistics import column_statistics
from veilmeans.io.sources.row_batches import row_batches
from veilmeans.io.sources.source_files import digest_of, find_files, kind_of
from veilmeans.io.sources.sparse_matrices import is_matrix, parse_column_ranges, tells_width, width_of
from veilmeans.io.sources.tables import columns_of
from veilmeans.io.storage.atomic_files import private_folder, read_json, write_text
from veilmeans.schemas.errors import InputError


@dataclass(frozen=True)
class Scan:
    """What a first pass over the source found."""

    source: str
    files: tuple[str, ...]
    content: str
    """Hex SHA-256 of the files' bytes."""
    digest: str
    """Hex SHA-256 of the files' bytes and of what was asked for."""
    rows: int
    fields: tuple[ColumnEncoding, ...]
    id: str | None
    low: tuple[float, ...]
    high: tuple[float, ...]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    nonzeros: tuple[int, ...]
    ids: str
    """Hex SHA-256 of the ids in order, each as text with its length before it; empty if there is no id."""

    @cached_property
    def columns(self) -> Sequence[str]:
        """The columns' names."""
        return names_of(self.fields)

    @property
    def encoding(self) -> TableEncoding:
        """What other rows need to become the same columns."""
        return TableEncoding(self.fields, tuple(compress(self.mean, of_kind(self.fields, "number"))))


def scan_source(
    source: str,
    columns: Sequence[str],
    id: str | None,  # noqa: A002
    folder: Path,
    features: int | None = None,
    treatment: EncodingRules | None = None,
    known: tuple[ColumnEncoding, ...] | None = None,
) -> Scan:
    """Check the source and find its statistics; no columns: all but the id. An unchanged source is not read again.

    `features` is how many columns a file has that does not say so. `known`: the fields of earlier rows, about which
    nothing is left to be found.
    """
    files = find_files(source)
    if known is None:
        asked = _asked(files, columns, id, features, treatment or EncodingRules())
    else:
        asked = _as_known(files, id, known)
    content = digest_of(files)
    digest = _digest(content, asked, id, known is not None)
    kept = folder / "scans" / f"{digest}.json"
    before = read_json(kept)
    if before is not None:
        return replace(_scan_from(before), source=source, files=files)
    found = column_statistics(source, files, asked, id, known is not None)
    scan = Scan(
        source, files, content, digest, found.rows, found.fields, id, _plain(found.moments.low),
        _plain(found.moments.high), _plain(found.mean), _plain(found.deviation), _plain(found.moments.nonzeros),
        found.ids,
    )  # fmt: skip
    private_folder(kept.parent)
    write_text(kept, json.dumps(_content(scan)))
    return scan


def raw_rows(scan: Scan) -> Iterator[NDArray[np.float64]]:
    """The numbers as they are, block by block: rows × the fields that are numbers."""
    for cells in row_batches(scan.files, scan.fields, scan.id):
        yield cells.dense


def _digest(content: str, asked: Sequence[ColumnEncoding], id: str | None, known: bool) -> str:  # noqa: A002
    fields = [{name: value for name, value in asdict(field).items() if name != "chosen" or value} for field in asked]
    what = ["scan 2", content, fields, id, *(["known"] if known else [])]
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()


def _asked(
    files: Sequence[str],
    columns: Sequence[str],
    id: str | None,  # noqa: A002
    features: int | None,
    treatment: EncodingRules,
) -> tuple[ColumnEncoding, ...]:
    """The fields as far as they are known before anything is read."""
    file = files[0]
    sparse = is_matrix(file)
    if id is not None and (sparse or kind_of(file) == "npz"):
        raise InputError(f"{file} holds no ids: leave out kmeans.id; its rows count in their order")
    if not sparse:
        return treatment.fields(file, _chosen(file, columns, id))
    treatment.fields(file, ())
    if columns:
        return (_some_columns(files, columns),)
    return (ColumnEncoding("", "matrix", width_of(files) if tells_width(file) else _said(file, features)),)


def _some_columns(files: Sequence[str], columns: Sequence[str]) -> ColumnEncoding:
    chosen = parse_column_ranges(files[0], columns)
    field = ColumnEncoding("", "matrix", sum(last - first for first, last in chosen), chosen=chosen)
    _check_last(files, field)
    return field


def _check_last(files: Sequence[str], field: ColumnEncoding) -> None:
    """That there is the last of the columns that are chosen."""
    last = field.chosen[-1][1] if field.chosen else 0
    if tells_width(files[0]) and last > (width := width_of(files)):
        raise InputError(f"{files[0]} has {width:,} columns, counted from 0, and kmeans.columns asks for {last - 1:,}")


def _as_known(files: Sequence[str], id: str | None, known: tuple[ColumnEncoding, ...]) -> tuple[ColumnEncoding, ...]:  # noqa: A002
    """The fields of earlier rows, of which this source must have all."""
    file, matrix = files[0], known[0].kind == "matrix"
    if is_matrix(file) != matrix:
        kinds = ("a table", "a sparse matrix")
        raise InputError(f"{file} is {kinds[not matrix]}, and the rows of the model were {kinds[matrix]}")
    if id is not None and kind_of(file) in ("npz", "svmlight"):
        raise InputError(f"{file} holds no ids: leave out kmeans.id; its rows count in their order")
    if not matrix:
        if id in [field.name for field in known]:
            raise InputError(f"{file}, column {id!r} is the id and cannot be one of the model's columns, too")
        return known
    if not known[0].chosen and tells_width(file) and width_of(files) != known[0].width:
        raise InputError(f"{file} has {width_of(files):,} columns, and the model has {known[0].width:,}")
    _check_last(files, known[0])
    return known


def _said(file: str, features: int | None) -> int:
    if features is None:
        raise InputError(f"{file} does not say how many columns it has: kmeans.features must")
    return features


def _chosen(file: str, columns: Sequence[str], id: str | None) -> tuple[str, ...]:  # noqa: A002
    if kind_of(file) == "npz":
        columns = [str(number) for first, last in parse_column_ranges(file, columns) for number in range(first, last)]
    if id in columns:
        raise InputError(f"{file}, column {id!r} is the id and cannot be one of the columns, too")
    chosen = tuple(columns) or tuple(name for name in columns_of(file) if name != id)
    if not chosen:
        raise InputError(f"{file} has no column but the id")
    return chosen


def _content(scan: Scan) -> dict[str, Any]:
    """Not `asdict` of it all, which would copy a million numbers one by one."""
    content = {each.name: getattr(scan, each.name) for each in dataclasses.fields(scan)}
    return {**content, "fields": [asdict(field) for field in scan.fields]}


def _scan_from(known: dict[str, Any]) -> Scan:
    content: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in known.items()
    }
    return Scan(**{**content, "fields": fields_from(content["fields"])})


def _plain(values: NDArray[Any]) -> tuple[Any, ...]:
    return tuple(values.tolist())
