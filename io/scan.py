"""The first pass over a party's source, block by block: every value is checked, each column's statistics are found.

The result is kept, and an unchanged source is not read again.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilmeans.io.data_files import digest_of, find_files
from veilmeans.io.fields import Field, names_of
from veilmeans.io.files import private_folder, read_json, write_text
from veilmeans.io.matrix import is_matrix, matrix_blocks, refuse_width, tells_width, width_of
from veilmeans.io.moments import Moments
from veilmeans.io.sources import columns_of
from veilmeans.io.values import cells_of, id_bytes
from veilmeans.schemas.errors import InputError


@dataclass(frozen=True)
class Scan:
    """What a first pass over the source found."""

    source: str
    files: tuple[str, ...]
    digest: str
    """Hex SHA-256 of the files' bytes and of what was asked for."""
    rows: int
    fields: tuple[Field, ...]
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


def scan_source(
    source: str,
    columns: Sequence[str],
    id: str | None,  # noqa: A002
    folder: Path,
    features: int | None = None,
) -> Scan:
    """Check the source and find its statistics; no columns: all but the id. An unchanged source is not read again.

    `features` is how many columns a file has that does not say so.
    """
    files = find_files(source)
    fields = _fields(files, columns, id, features)
    digest = digest_scan(files, fields, id)
    kept = folder / "scans" / f"{digest}.json"
    known = read_json(kept)
    if known is not None:
        return replace(_scan_from(known), source=source, files=files)
    scan = _scan(source, files, fields, id, digest)
    private_folder(kept.parent)
    write_text(kept, json.dumps(_content(scan)))
    return scan


def raw_rows(scan: Scan) -> Iterator[NDArray[np.float64]]:
    """The numbers as they are, block by block: rows × the columns that are no part of a sparse matrix."""
    for cells in cells_of(scan.files, scan.fields, scan.id):
        yield cells.dense


def digest_scan(files: Sequence[str], fields: Sequence[Field], id: str | None) -> str:  # noqa: A002
    """What a scan depends on. Where svmlight indices begin is not asked for, but found."""
    asked = [asdict(replace(field, base=0)) for field in fields]
    return hashlib.sha256(json.dumps(["scan 2", digest_of(files), asked, id]).encode()).hexdigest()


def _fields(files: Sequence[str], columns: Sequence[str], id: str | None, features: int | None) -> tuple[Field, ...]:  # noqa: A002
    if is_matrix(files[0]):
        return (_matrix_field(files, columns, id, features),)
    if files[0].lower().endswith(".npz"):
        _refuse_id(files[0], id)
    return tuple(Field(name) for name in _chosen(files[0], columns, id))


def _matrix_field(files: Sequence[str], columns: Sequence[str], id: str | None, features: int | None) -> Field:  # noqa: A002
    _refuse_id(files[0], id)
    if columns:
        raise InputError(f"{files[0]} is a sparse matrix, of which all columns are taken: leave out kmeans.columns")
    if tells_width(files[0]):
        return Field("", "matrix", width_of(files))
    if features is None:
        raise InputError(f"{files[0]} does not say how many columns it has: kmeans.features must")
    return Field("", "matrix", features)


def _refuse_id(file: str, id: str | None) -> None:  # noqa: A002
    if id is not None:
        raise InputError(f"{file} holds no ids: leave out kmeans.id; its rows count in their order")


def _chosen(file: str, columns: Sequence[str], id: str | None) -> tuple[str, ...]:  # noqa: A002
    if id in columns:
        raise InputError(f"{file}, column {id!r} is the id and cannot be one of the columns, too")
    chosen = tuple(columns) or tuple(name for name in columns_of(file) if name != id)
    if not chosen:
        raise InputError(f"{file} has no column but the id")
    return chosen


def _scan(source: str, files: tuple[str, ...], fields: tuple[Field, ...], id: str | None, digest: str) -> Scan:  # noqa: A002
    ids = hashlib.sha256()
    with np.errstate(over="ignore", invalid="ignore"):
        if fields[0].kind == "matrix":
            fields, moments = _matrix_moments(source, files, fields[0])
        else:
            moments = _table_moments(source, files, fields, id, ids)
        mean, deviation = moments.mean_and_deviation()
    _check_squares(source, fields, deviation)
    return Scan(
        source, files, digest, moments.rows, fields, id, _plain(moments.low), _plain(moments.high), _plain(mean),
        _plain(deviation), _plain(moments.nonzeros), "" if id is None else ids.hexdigest(),
    )  # fmt: skip


def _table_moments(source: str, files: Sequence[str], fields: Sequence[Field], id: str | None, ids: Any) -> Moments:  # noqa: A002
    moments: Moments | None = None
    for cells in cells_of(files, fields, id):
        here = Moments.of(cells.dense)
        moments = here if moments is None else moments.merge(here)
        if cells.ids is not None:
            ids.update(id_bytes(cells.ids))
    return _require_rows(source, moments)


def _matrix_moments(source: str, files: Sequence[str], field: Field) -> tuple[tuple[Field, ...], Moments]:
    """svmlight indices count from 1 if none is 0, which is known at the end: until then there is a column more."""
    more = 0 if tells_width(files[0]) else 1
    moments: Moments | None = None
    lowest, highest = field.width, -1
    for block in matrix_blocks(files, field.width + more):
        if not block.rows.shape[0]:
            continue
        here = Moments.of_sparse(block.rows)
        moments = here if moments is None else moments.merge(here)
        lowest = min(lowest, int(block.rows.indices.min(initial=lowest)))
        highest = max(highest, int(block.rows.indices.max(initial=highest)))
    base = more if 0 < lowest <= highest else 0
    if highest - base >= field.width:
        refuse_width(files, field.width)
    chosen = _require_rows(source, moments).columns(slice(base, base + field.width))
    return (replace(field, base=base),), chosen


def _require_rows(source: str, moments: Moments | None) -> Moments:
    if moments is None:
        raise InputError(f"{source} has no rows")
    return moments


def _check_squares(source: str, fields: Sequence[Field], deviation: NDArray[np.float64]) -> None:
    bad = ~np.isfinite(deviation)
    if bad.any():
        name = names_of(fields)[int(bad.argmax())]
        raise InputError(f"{source}, column {name!r}: values are too large to be squared and summed; rescale them")


def _content(scan: Scan) -> dict[str, Any]:
    """Not `asdict` of it all, which would copy a million numbers one by one."""
    content = {each.name: getattr(scan, each.name) for each in dataclasses.fields(scan)}
    return {**content, "fields": [asdict(field) for field in scan.fields]}


def _scan_from(known: dict[str, Any]) -> Scan:
    content: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in known.items()
    }
    fields = tuple(Field(**each) for each in content["fields"])
    return Scan(**{**content, "fields": fields})


def _plain(values: NDArray[Any]) -> tuple[Any, ...]:
    return tuple(values.tolist())
