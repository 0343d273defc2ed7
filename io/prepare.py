"""A party's rows, ready for the protocol: normalised, in fixed point, sparse, in shards on the party's own disk.

Two passes over the source, block by block:
  1. `scan_source` checks every value and finds each column's statistics, from which `scaling_of` makes a scaling;
  2. `encode_source` writes shards of ring elements, and beside each the ids of its rows.
Both keep their result, and equal work is not done twice. Shards are plaintext: they never leave the party.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import scipy.sparse
from numpy.typing import NDArray

from veilmeans.crypto import fixed, ring
from veilmeans.io.files import disk_error, in_place, write_arrays, write_json
from veilmeans.io.sources import Block, blocks, columns_of, digest_of, find_files
from veilmeans.schemas.arrays import from_stream, write_stream
from veilmeans.schemas.errors import InputError

Floats = NDArray[np.float64]
Method = Literal["minmax", "zscore", "none"]

_SLACK = 1e-9
"""How far beyond the interval a value may be by rounding, relative to the interval's ends."""


@dataclass(frozen=True)
class Scan:
    """What a first pass over the source found."""

    source: str
    files: tuple[str, ...]
    digest: str
    """Hex SHA-256 of the files' bytes, the columns and the id."""
    rows: int
    columns: tuple[str, ...]
    id: str | None
    low: tuple[float, ...]
    high: tuple[float, ...]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    ids: str
    """Hex SHA-256 of the ids in order, each as text with its length before it; empty if there is no id."""


@dataclass(frozen=True)
class Scaling:
    """normalised = (x − shift) · factor; a constant column has the factor 0 and becomes 0."""

    shift: tuple[float, ...]
    factor: tuple[float, ...]

    def normalise(self, values: Floats) -> Floats:
        """Values in original units (… × columns) on the common scale."""
        return np.asarray((values - np.array(self.shift)) * np.array(self.factor))

    def original(self, values: Floats) -> Floats:
        """Back to original units; a constant column is its shift."""
        factor = np.array(self.factor)
        moved = np.divide(values, factor, out=np.zeros(np.shape(values)), where=factor != 0)
        return np.asarray(moved + np.array(self.shift))


@dataclass(frozen=True)
class Prepared:
    """A folder of shards: how many rows and columns, and the nonzeros of each shard."""

    folder: Path
    rows: int
    columns: tuple[str, ...]
    rows_per_shard: int
    nonzeros: tuple[int, ...]

    @property
    def shards(self) -> int:
        return len(self.nonzeros)


def scan_source(source: str, columns: Sequence[str], id: str | None, folder: Path) -> Scan:  # noqa: A002
    """Check the source and find its statistics; no columns: all but the id. An unchanged source is not read again."""
    files = find_files(source)
    chosen = _chosen(files[0], columns, id)
    digest = _digest(files, chosen, id)
    kept = folder / "scans" / f"{digest}.json"
    known = _read_json(kept)
    if known is not None:
        return replace(_scan_from(known), source=source, files=files)
    scan = _scan(source, files, chosen, id, digest)
    _private(kept.parent)
    write_json(kept, asdict(scan))
    return scan


def raw_rows(scan: Scan) -> Iterator[Floats]:
    """The rows as they are, block by block (rows × columns)."""
    for block in blocks(scan.files, scan.columns, scan.id, numbers=True):
        yield _numbers(block, scan.columns)


def scaling_of(
    method: Method, low: Sequence[float], high: Sequence[float], mean: Sequence[float], deviation: Sequence[float]
) -> Scaling:
    """minmax: [low, high] to [0, 1]; zscore: mean to 0 and deviation to 1; none: as it is."""
    if method == "none":
        return Scaling((0.0,) * len(low), (1.0,) * len(low))
    shift, width = (low, np.subtract(high, low)) if method == "minmax" else (mean, np.array(deviation))
    with np.errstate(divide="ignore", over="ignore"):
        factor = 1 / np.asarray(width, np.float64)
    return Scaling(_floats(np.asarray(shift)), _floats(np.where(np.isfinite(factor), factor, 0)))


def encode_source(
    scan: Scan, scaling: Scaling, interval: tuple[float, float], rows_per_shard: int, folder: Path
) -> Prepared:
    """Write the normalised rows in shards below `folder`, unless they are there; each value must be in `interval`."""
    work = json.dumps([scan.digest, scaling.shift, scaling.factor, [float(end) for end in interval], rows_per_shard])
    target = folder / f"prepared-{hashlib.sha256(work.encode()).hexdigest()}"
    done = load_prepared(target)
    if done is not None:
        return done
    shutil.rmtree(target, ignore_errors=True)
    try:
        _private(target)
        return _write_shards(scan, scaling, interval, rows_per_shard, target)
    except BaseException as error:
        shutil.rmtree(target, ignore_errors=True)
        if isinstance(error, OSError):
            raise disk_error(folder, error) from None
        raise


def load_prepared(folder: Path) -> Prepared | None:
    """What is in a folder that `encode_source` completed, or None."""
    found = _read_json(_manifest(folder))
    if found is None:
        return None
    return Prepared(folder, found["rows"], tuple(found["columns"]), found["rows_per_shard"], tuple(found["nonzeros"]))


def read_rows(folder: Path, shard: int) -> "scipy.sparse.csr_array":
    """One shard as a sparse matrix of ring elements, memory-mapped and read-only."""
    with pa.memory_map(str(_rows_file(folder, shard))) as source:
        arrays = from_stream(source)
    indptr = arrays["indptr"]
    if indptr[-1] < 1 << 31:  # scipy would widen the indices to the type of indptr
        indptr = indptr.astype(np.int32)
    return scipy.sparse.csr_array((arrays["values"], arrays["indices"], indptr), shape=tuple(arrays["shape"]))


def read_ids(folder: Path, shard: int) -> pa.Array:
    """The ids of one shard's rows; without an id, the rows' numbers from 0."""
    file = _ids_file(folder, shard)
    if file.exists():
        with pa.memory_map(str(file)) as source, pa.ipc.open_stream(source) as reader:
            return reader.read_next_batch().column(0)
    found = load_prepared(folder)
    if found is None:
        raise InputError(f"{folder} holds no prepared data")
    first = shard * found.rows_per_shard
    return pa.array(np.arange(first, min(first + found.rows_per_shard, found.rows)))


# The first pass


@dataclass(frozen=True)
class _Moments:
    """Statistics of some rows, per column; `squares` sums the squared distances to the mean."""

    rows: int
    low: Floats
    high: Floats
    mean: Floats
    squares: Floats

    @classmethod
    def of(cls, values: Floats) -> "_Moments":
        mean = values.mean(axis=0)
        return cls(len(values), values.min(axis=0), values.max(axis=0), mean, np.square(values - mean).sum(axis=0))

    def merge(self, other: "_Moments") -> "_Moments":
        """Those of both together (Chan, Golub and LeVeque)."""
        rows = self.rows + other.rows
        apart = other.mean - self.mean
        return _Moments(
            rows,
            np.minimum(self.low, other.low),
            np.maximum(self.high, other.high),
            self.mean + apart * (other.rows / rows),
            self.squares + other.squares + np.square(apart) * (self.rows * (other.rows / rows)),
        )


def _scan(source: str, files: tuple[str, ...], columns: tuple[str, ...], id: str | None, digest: str) -> Scan:  # noqa: A002
    moments: _Moments | None = None
    ids = hashlib.sha256()
    with np.errstate(over="ignore", invalid="ignore"):
        for block in _typed_ids(blocks(files, columns, id, numbers=True), id):
            here = _Moments.of(_numbers(block, columns))
            moments = here if moments is None else moments.merge(here)
            if id is not None:
                ids.update(_id_bytes(block, id))
    if moments is None:
        raise InputError(f"{source} has no rows")
    mean, deviation = _mean_deviation(source, columns, moments)
    return Scan(
        source, files, digest, moments.rows, columns, id, _floats(moments.low), _floats(moments.high), _floats(mean),
        _floats(deviation), "" if id is None else ids.hexdigest(),
    )  # fmt: skip


def _scan_from(known: dict[str, Any]) -> Scan:
    content: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in known.items()
    }
    return Scan(**content)


def _mean_deviation(source: str, columns: Sequence[str], found: _Moments) -> tuple[Floats, Floats]:
    """Those of a constant column are exact, whatever was lost in rounding."""
    deviation = np.sqrt(found.squares / found.rows)
    for name, finite in zip(columns, np.isfinite(deviation), strict=True):
        if not finite:
            raise InputError(f"{source}, column {name!r}: values are too large to be squared and summed; rescale them")
    constant = found.low == found.high
    return np.where(constant, found.low, found.mean), np.where(constant, 0, deviation)


def _chosen(file: str, columns: Sequence[str], id: str | None) -> tuple[str, ...]:  # noqa: A002
    if id in columns:
        raise InputError(f"{file}, column {id!r} is the id and cannot be one of the columns, too")
    chosen = tuple(columns) or tuple(name for name in columns_of(file) if name != id)
    if not chosen:
        raise InputError(f"{file} has no column but the id")
    return chosen


def _digest(files: Sequence[str], columns: Sequence[str], id: str | None) -> str:  # noqa: A002
    return hashlib.sha256(json.dumps(["scan 1", digest_of(files), columns, id]).encode()).hexdigest()


# Values and ids of a block


def _numbers(block: Block, columns: Sequence[str]) -> Floats:
    """Rows × columns, each value checked."""
    values = np.empty((len(columns), block.rows.num_rows))
    for i, name in enumerate(columns):
        values[i] = _column(block, name)
    return values.T


def _column(block: Block, name: str) -> Floats:
    column = block.rows.column(name)
    kind = column.type
    if not any(holds(kind) for holds in _NUMERIC):
        what = f"{block.file}, column {name!r} holds {kind}, and numbers are needed"
        raise InputError(f"{what}: correct it, or leave it out of the columns")
    if column.null_count:
        raise InputError(f"{block.place(pc.index(column.is_null(), True).as_py(), name)}: no value")
    values: Floats = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    bad = ~np.isfinite(values)
    if bad.any():
        raise InputError(f"{block.place(int(bad.argmax()), name)}: no finite number")
    return values


_NUMERIC = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)


def _typed_ids(found: Iterator[Block], id: str | None) -> Iterator[Block]:  # noqa: A002
    """The blocks, with ids of one type in all files and none missing."""
    first: Block | None = None
    for block in found:
        if id is not None:
            first = first or block
            _check_ids(first, block, id)
        yield block


def _check_ids(first: Block, block: Block, name: str) -> None:
    ids, kind = block.rows.column(name), first.rows.column(name).type
    if not (pa.types.is_integer(ids.type) or _is_text(ids.type)):
        raise InputError(f"{block.file}, column {name!r} holds {ids.type}, and an id must be a whole number or text")
    if ids.type != kind:
        raise InputError(f"the id {name!r} is {kind} in {first.file} and {ids.type} in {block.file}: give it one type")
    missing = pc.fill_null(pc.equal(ids, ""), True) if _is_text(ids.type) else ids.is_null()
    if pc.any(missing).as_py():
        raise InputError(f"{block.place(pc.index(missing, True).as_py(), name)}: no id")


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _id_bytes(block: Block, name: str) -> bytes:
    """Each id as text in UTF-8, after its length in eight bytes: 7 and "7" are alike, and no two lists are."""
    text = block.rows.column(name).cast(pa.large_string()).cast(pa.large_binary())
    lengths = pc.binary_length(text).to_numpy().astype("<i8")
    eight = pa.FixedSizeBinaryArray.from_buffers(pa.binary(8), len(lengths), [None, pa.py_buffer(lengths)])
    joined = pc.binary_join_element_wise(eight.cast(pa.large_binary()), text, pa.scalar(b"", pa.large_binary()))
    return bytes(joined.buffers()[2][: pc.sum(pc.binary_length(joined)).as_py()])


# The second pass


@dataclass(frozen=True)
class _Part:
    """Consecutive rows in CSR form, and their ids."""

    counts: NDArray[np.int64]
    indices: NDArray[np.int32]
    values: ring.Ring
    ids: pa.Array | None

    def split(self, rows: int) -> tuple["_Part", "_Part"]:
        """The first `rows` rows, and the rest."""
        at = int(self.counts[:rows].sum())
        ids = (None, None) if self.ids is None else (self.ids[:rows], self.ids[rows:])
        return (
            _Part(self.counts[:rows], self.indices[:at], self.values[:at], ids[0]),
            _Part(self.counts[rows:], self.indices[at:], self.values[at:], ids[1]),
        )


def _joined(parts: list[_Part]) -> _Part:
    ids = [part.ids for part in parts if part.ids is not None]
    return _Part(
        np.concatenate([part.counts for part in parts]),
        np.concatenate([part.indices for part in parts]),
        np.concatenate([part.values for part in parts]),
        pa.concat_arrays(ids) if ids else None,
    )


def _write_shards(
    scan: Scan, scaling: Scaling, interval: tuple[float, float], rows_per_shard: int, target: Path
) -> Prepared:
    rows = 0
    nonzeros: list[int] = []
    found = _typed_ids(blocks(scan.files, scan.columns, scan.id, numbers=True), scan.id)
    parts = (_encoded(block, scan, scaling, interval) for block in found)
    for shard, part in enumerate(_regrouped(parts, rows_per_shard)):
        _write_shard(target, shard, part, len(scan.columns))
        rows += len(part.counts)
        nonzeros.append(len(part.values))
    if _digest(scan.files, scan.columns, scan.id) != scan.digest:
        raise InputError(f"{scan.source} was changed after it was first read: start again")
    content = {"rows": rows, "columns": scan.columns, "rows_per_shard": rows_per_shard, "nonzeros": nonzeros}
    write_json(_manifest(target), content)
    return Prepared(target, rows, scan.columns, rows_per_shard, tuple(nonzeros))


def _encoded(block: Block, scan: Scan, scaling: Scaling, interval: tuple[float, float]) -> _Part:
    values = scaling.normalise(_numbers(block, scan.columns))
    _check_interval(block, scan.columns, values, interval)
    elements = np.ascontiguousarray(fixed.encode(np.clip(values, *interval)))
    rows, indices = np.nonzero(elements)
    counts = np.bincount(rows, minlength=len(elements)).astype(np.int64)
    return _Part(
        counts,
        indices.astype(np.int32),
        elements[rows, indices],
        None if scan.id is None else block.rows.column(scan.id),
    )


def _check_interval(block: Block, columns: Sequence[str], values: Floats, interval: tuple[float, float]) -> None:
    low, high = interval
    slack = _SLACK * max(abs(low), abs(high))
    bad = ~((values >= low - slack) & (values <= high + slack))
    if bad.any():
        row, column = divmod(int(bad.argmax()), len(columns))
        side = f"below {low:g}" if values[row, column] < low else f"above {high:g}"
        raise InputError(
            f"{block.place(row, columns[column])}: the normalised value is {side}; "
            "raise kmeans.normalise.bound, or give wider kmeans.normalise.ranges"
        )


def _regrouped(parts: Iterator[_Part], rows: int) -> Iterator[_Part]:
    """The same rows in parts of exactly `rows`; the last one may be shorter."""
    waiting: list[_Part] = []
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


def _write_shard(folder: Path, shard: int, part: _Part, columns: int) -> None:
    indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(part.counts)])
    shape = np.array([len(part.counts), columns])
    arrays = {"indptr": indptr, "indices": part.indices, "values": part.values, "shape": shape}
    write_arrays(_rows_file(folder, shard), arrays)
    if part.ids is not None:
        _write_ids(_ids_file(folder, shard), part.ids)


def _write_ids(path: Path, ids: pa.Array) -> None:
    with in_place(path) as part, pa.OSFile(str(part), "wb") as file:
        write_stream(pa.record_batch([ids], ["id"]), file)


# Files


def _rows_file(folder: Path, shard: int) -> Path:
    return folder / f"{shard:06d}.rows.arrow"


def _ids_file(folder: Path, shard: int) -> Path:
    return folder / f"{shard:06d}.ids.arrow"


def _manifest(folder: Path) -> Path:
    return folder / "manifest.json"


def _private(folder: Path) -> None:
    """A folder, and those above it, for this user only."""
    try:
        for place in reversed([folder, *folder.parents]):
            if not place.exists():
                place.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise disk_error(folder, error) from None


def _read_json(path: Path) -> Any:
    """What `write_json` wrote there, or None."""
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None


def _floats(values: NDArray[Any]) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
