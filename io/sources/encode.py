"""The second pass over a party's source: normalised, in fixed point, sparse, in shards. No work is done twice."""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import scipy.sparse
from numpy.typing import NDArray

from veilmeans.crypto import fixed_point as fixed
from veilmeans.crypto import ring
from veilmeans.io.sources.row_batches import RowBatch, row_batches
from veilmeans.io.sources.scaling import Scaling
from veilmeans.io.sources.scan import Scan
from veilmeans.io.sources.source_files import digest_of
from veilmeans.io.storage.atomic_files import disk_error, private_folder
from veilmeans.io.storage.encoded_shards import EncodedData, is_integer_valued, load_encoded_data, write_ids, write_rows
from veilmeans.schemas.errors import InputError

Floats = NDArray[np.float64]
_SLACK = 1e-9
"""How far beyond the interval a value may be by rounding, relative to the interval's ends."""


@dataclass(frozen=True)
class OutOfRange:
    """What becomes of a value beyond the interval: it is moved to the nearer end, or refused with an advice."""

    clip: bool
    advice: str


REFUSE_OUT_OF_RANGE = OutOfRange(False, "raise kmeans.normalise.bound, or give wider kmeans.normalise.ranges")


def encode_source(
    scan: Scan,
    scaling: Scaling,
    interval: tuple[float, float],
    rows_per_shard: int,
    folder: Path,
    beyond: OutOfRange = REFUSE_OUT_OF_RANGE,
) -> EncodedData:
    """Write the normalised rows in shards below `folder`, unless they are there; each value must be in `interval`."""
    ends = [float(end) for end in interval]
    clipped = ["clip"] if beyond.clip else []
    work = json.dumps([scan.digest, scaling.shift, scaling.factor, ends, rows_per_shard, *clipped])
    target = folder / f"prepared-{hashlib.sha256(work.encode()).hexdigest()}"
    done = load_encoded_data(target)
    if done is not None:
        return done
    shutil.rmtree(target, ignore_errors=True)
    try:
        private_folder(target)
        return _write_shards(scan, _Encoder(scan.columns, scaling, interval, beyond), rows_per_shard, target)
    except BaseException as error:
        shutil.rmtree(target, ignore_errors=True)
        if isinstance(error, OSError):
            raise disk_error(folder, error) from None
        raise


@dataclass(frozen=True)
class _EncodedRows:
    """Consecutive rows in CSR form, and their ids."""

    counts: NDArray[np.int64]
    indices: NDArray[np.int32]
    values: ring.Ring
    ids: pa.Array | None

    def split(self, rows: int) -> tuple["_EncodedRows", "_EncodedRows"]:
        """The first `rows` rows, and the rest."""
        at = int(self.counts[:rows].sum())
        ids = (None, None) if self.ids is None else (self.ids[:rows], self.ids[rows:])
        return (
            _EncodedRows(self.counts[:rows], self.indices[:at], self.values[:at], ids[0]),
            _EncodedRows(self.counts[rows:], self.indices[at:], self.values[at:], ids[1]),
        )


def _joined(parts: list[_EncodedRows]) -> _EncodedRows:
    ids = [part.ids for part in parts if part.ids is not None]
    return _EncodedRows(
        np.concatenate([part.counts for part in parts]),
        np.concatenate([part.indices for part in parts]),
        np.concatenate([part.values for part in parts]),
        pa.concat_arrays(ids) if ids else None,
    )


def _write_shards(scan: Scan, encoder: "_Encoder", rows_per_shard: int, target: Path) -> EncodedData:
    rows, whole = 0, True
    nonzeros: list[int] = []
    parts = map(encoder.part, row_batches(scan.files, scan.fields, scan.id))
    for shard, part in enumerate(_regrouped(parts, rows_per_shard)):
        _write_shard(target, shard, part, len(scan.columns))
        rows += len(part.counts)
        whole = whole and is_integer_valued(part.values)
        nonzeros.append(len(part.values))
    if digest_of(scan.files) != scan.content:
        raise InputError(f"{scan.source} was changed after it was first read: start again")
    prepared = EncodedData(target, rows, scan.columns, rows_per_shard, tuple(nonzeros), whole)
    prepared.save()
    return prepared


Entries = tuple[NDArray[np.intp], NDArray[np.intp], ring.Ring]
"""Row, column and ring element of values that are not 0, row by row."""


class _Encoder:
    """Rows of original values as sparse rows of ring elements."""

    def __init__(
        self, columns: Sequence[str], scaling: Scaling, interval: tuple[float, float], beyond: OutOfRange
    ) -> None:
        self.columns, self.interval, self.beyond = columns, interval, beyond
        self.shift, self.factor = np.array(scaling.shift), np.array(scaling.factor)

    def part(self, cells: RowBatch) -> _EncodedRows:
        rows, columns, elements = self._entries(cells)
        counts = np.bincount(rows, minlength=len(cells.dense)).astype(np.int64)
        return _EncodedRows(counts, columns.astype(np.int32), elements, cells.ids)

    def _entries(self, cells: RowBatch) -> Entries:
        if cells.sparse is None:
            return self._dense(cells)
        if not len(cells.at):
            return self._sparse(cells, cells.sparse)
        pairs = zip(self._dense(cells), self._sparse(cells, cells.sparse), strict=True)
        rows, columns, elements = (np.concatenate(pair) for pair in pairs)
        order = np.lexsort((columns, rows))
        return rows[order], columns[order], elements[order]

    def _dense(self, cells: RowBatch) -> Entries:
        values = (cells.dense - self.shift[cells.at]) * self.factor[cells.at]
        width = len(cells.at)
        elements = self._encode(values, lambda i: cells.place(i // width, self.columns[cells.at[i % width]]))
        rows, places = np.nonzero(elements)
        return rows, cells.at[places], elements[rows, places]

    def _sparse(self, cells: RowBatch, stored: "scipy.sparse.csr_array") -> Entries:
        """What is not stored stays 0, for these columns are not shifted."""
        rows, columns = np.repeat(np.arange(stored.shape[0]), np.diff(stored.indptr)), stored.indices
        values = stored.data * self.factor[columns]
        elements = self._encode(values, lambda i: cells.place(rows[i], self.columns[columns[i]]))
        (kept,) = np.nonzero(elements)
        return rows[kept], columns[kept], elements[kept]

    def _encode(self, values: Floats, place: Callable[[int], str]) -> ring.Ring:
        low, high = self.interval
        slack = _SLACK * max(abs(low), abs(high))
        values = np.clip(values, low, high) if self.beyond.clip else values
        bad = ~((values >= low - slack) & (values <= high + slack))
        if bad.any():
            first = int(bad.argmax())
            side = f"below {low:g}" if values.reshape(-1)[first] < low else f"above {high:g}"
            raise InputError(f"{place(first)}: the normalised value is {side}; {self.beyond.advice}")
        return np.ascontiguousarray(fixed.encode(np.clip(values, low, high)))


def _regrouped(parts: Iterator[_EncodedRows], rows: int) -> Iterator[_EncodedRows]:
    """The same rows in parts of exactly `rows`; the last one may be shorter."""
    waiting: list[_EncodedRows] = []
    missing = rows
    for part in parts:
        rest = part
        while len(rest.counts) >= missing:
            head, rest = rest.split(missing)
            yield _joined([*waiting, head])
            waiting, missing = [], rows
        if len(rest.counts):
            waiting.append(rest)
            missing -= len(rest.counts)
    if waiting:
        yield _joined(waiting)


def _write_shard(folder: Path, shard: int, part: _EncodedRows, columns: int) -> None:
    indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(part.counts)])
    write_rows(folder, shard, indptr, part.indices, part.values, columns)
    if part.ids is not None:
        write_ids(folder, shard, part.ids)
