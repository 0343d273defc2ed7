"""The second pass over a party's source: rows are normalised and written in fixed point, sparse, in row shards."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from veilmeans.crypto import fixed_point as fixed
from veilmeans.crypto import ring
from veilmeans.io.files.atomic_files import disk_errors
from veilmeans.io.files.party_files import files_at
from veilmeans.io.sources.row_batches import RowBatch, row_batches
from veilmeans.io.sources.row_digest import RowDigest
from veilmeans.io.sources.scaling import Scaling
from veilmeans.io.sources.scan import Scan
from veilmeans.io.storage.encoded_shards import (
    EncodedData,
    is_integer_valued,
    load_encoded_data,
    write_ids,
    write_labels,
    write_rows,
)
from veilmeans.schemas.arrays import Real
from veilmeans.schemas.errors import InputError
from veilmeans.schemas.run_folder import PreparedData

if TYPE_CHECKING:
    import scipy.sparse

_SLACK = 1e-9  # the distance from the interval that rounding may cause, relative to the interval's ends


@dataclass(frozen=True)
class OutOfRange:
    """The treatment of a value out of range: it is clipped to the nearer end, or refused with an advice."""

    clip: bool
    advice: str


REFUSE_OUT_OF_RANGE = OutOfRange(False, "raise kmeans.normalise.bound, or give wider kmeans.normalise.ranges")


def encode_source(
    scan: Scan,
    scaling: Scaling,
    interval: tuple[float, float],
    rows_per_shard: int,
    folder: Path,
    out_of_range: OutOfRange = REFUSE_OUT_OF_RANGE,
) -> EncodedData:
    """Write the normalised rows in shards below `folder`, unless they exist; each value must be in `interval`."""
    ends = [float(end) for end in interval]
    clipped = ["clip"] if out_of_range.clip else []
    work = json.dumps([scan.digest, scaling.shift, scaling.factor, ends, rows_per_shard, *clipped])
    target = PreparedData(folder).encoded(hashlib.sha256(work.encode()).hexdigest()).path
    existing = load_encoded_data(target)
    if existing is not None:
        return existing
    files = files_at(target)
    files.delete_folder(target)
    with disk_errors(folder):
        try:
            return _write_shards(scan, _Encoder(scan.columns, scaling, interval, out_of_range), rows_per_shard, target)
        except BaseException:
            files.delete_folder(target)
            raise


@dataclass(frozen=True)
class _EncodedRows:
    """Consecutive rows in CSR form, their ids and labels."""

    counts: NDArray[np.int64]
    indices: NDArray[np.int32]
    values: ring.Ring
    ids: pa.Array | None
    labels: NDArray[np.uint8] | None

    def split(self, rows: int) -> tuple["_EncodedRows", "_EncodedRows"]:
        """Return the first `rows` rows, and the rest."""
        at = int(self.counts[:rows].sum())
        ids = (None, None) if self.ids is None else (self.ids[:rows], self.ids[rows:])
        labels = (None, None) if self.labels is None else (self.labels[:rows], self.labels[rows:])
        return (
            _EncodedRows(self.counts[:rows], self.indices[:at], self.values[:at], ids[0], labels[0]),
            _EncodedRows(self.counts[rows:], self.indices[at:], self.values[at:], ids[1], labels[1]),
        )


def _join(several: list[_EncodedRows]) -> _EncodedRows:
    ids = [each.ids for each in several if each.ids is not None]
    labels = [each.labels for each in several if each.labels is not None]
    return _EncodedRows(
        np.concatenate([each.counts for each in several]),
        np.concatenate([each.indices for each in several]),
        np.concatenate([each.values for each in several]),
        pa.concat_arrays(ids) if ids else None,
        np.concatenate(labels) if labels else None,
    )


def _write_shards(scan: Scan, encoder: "_Encoder", rows_per_shard: int, target: Path) -> EncodedData:
    rows, integer_valued = 0, True
    nonzeros: list[int] = []
    digest = RowDigest()
    batches = map(encoder.encode, row_batches(scan.source, scan.fields, scan.id, digest, scan.label))
    for shard, encoded in enumerate(_in_shards(batches, rows_per_shard)):
        indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(encoded.counts)])
        write_rows(target, shard, indptr, encoded.indices, encoded.values, len(scan.columns))
        if encoded.ids is not None:
            write_ids(target, shard, encoded.ids)
        if encoded.labels is not None:
            write_labels(target, shard, encoded.labels)
        rows += len(encoded.counts)
        integer_valued = integer_valued and is_integer_valued(encoded.values)
        nonzeros.append(len(encoded.values))
    if digest.hexdigest() != scan.content:
        raise InputError(f"{scan.source} was changed after it was first read: rerun")
    data = EncodedData(target, rows, scan.columns, rows_per_shard, tuple(nonzeros), integer_valued)
    data.save()
    return data


Entries = tuple[NDArray[np.intp], NDArray[np.intp], ring.Ring]  # row, column and ring element of nonzeros, row by row


class _Encoder:
    """An encoder of rows in original units as sparse rows of ring elements."""

    def __init__(
        self, columns: Sequence[str], scaling: Scaling, interval: tuple[float, float], out_of_range: OutOfRange
    ) -> None:
        self.columns, self.interval, self.out_of_range = columns, interval, out_of_range
        self.shift, self.factor = np.array(scaling.shift), np.array(scaling.factor)

    def encode(self, batch: RowBatch) -> _EncodedRows:
        """Normalise and encode a batch."""
        rows, columns, elements = self._entries(batch)
        counts = np.bincount(rows, minlength=len(batch.dense)).astype(np.int64)
        return _EncodedRows(counts, columns.astype(np.int32), elements, batch.ids, batch.labels)

    def _entries(self, batch: RowBatch) -> Entries:
        if batch.sparse is None:
            return self._dense(batch)
        if not len(batch.at):
            return self._sparse(batch, batch.sparse)
        pairs = zip(self._dense(batch), self._sparse(batch, batch.sparse), strict=True)
        rows, columns, elements = (np.concatenate(pair) for pair in pairs)
        order = np.lexsort((columns, rows))
        return rows[order], columns[order], elements[order]

    def _dense(self, batch: RowBatch) -> Entries:
        values = (batch.dense - self.shift[batch.at]) * self.factor[batch.at]
        width = len(batch.at)
        elements = self._to_ring(values, lambda i: batch.place(i // width, self.columns[batch.at[i % width]]))
        rows, positions = np.nonzero(elements)
        return rows, batch.at[positions], elements[rows, positions]

    def _sparse(self, batch: RowBatch, stored: "scipy.sparse.csr_array") -> Entries:
        """Encode the stored values; all others stay 0, because these columns are not shifted."""
        rows, columns = np.repeat(np.arange(stored.shape[0]), np.diff(stored.indptr)), stored.indices
        values = stored.data * self.factor[columns]
        elements = self._to_ring(values, lambda i: batch.place(rows[i], self.columns[columns[i]]))
        (nonzero,) = np.nonzero(elements)
        return rows[nonzero], columns[nonzero], elements[nonzero]

    def _to_ring(self, values: Real, place: Callable[[int], str]) -> ring.Ring:
        low, high = self.interval
        slack = _SLACK * max(abs(low), abs(high))
        values = np.clip(values, low, high) if self.out_of_range.clip else values
        bad = ~((values >= low - slack) & (values <= high + slack))
        if bad.any():
            first = int(bad.argmax())
            side = f"below {low:g}" if values.reshape(-1)[first] < low else f"above {high:g}"
            raise InputError(f"{place(first)}: the normalised value is {side}; {self.out_of_range.advice}")
        return np.ascontiguousarray(fixed.encode(np.clip(values, low, high)))


def _in_shards(batches: Iterator[_EncodedRows], rows: int) -> Iterator[_EncodedRows]:
    """Regroup batches into shards of exactly `rows` rows; the last one may be shorter."""
    pending: list[_EncodedRows] = []
    missing = rows
    for batch in batches:
        rest = batch
        while len(rest.counts) >= missing:
            head, rest = rest.split(missing)
            yield _join([*pending, head])
            pending, missing = [], rows
        if len(rest.counts):
            pending.append(rest)
            missing -= len(rest.counts)
    if pending:
        yield _join(pending)
