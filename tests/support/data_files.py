"""Data files in every format, a file system in memory, and a count of what is read."""

import gzip
import io
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest
from apache_beam.io.filesystem import CompressedFile, CompressionTypes, FileMetadata, FileSystem
from sklearn.datasets import dump_svmlight_file

from veilmeans.crypto import fixed_point as fixed
from veilmeans.io.sources import npz, source_files, tables
from veilmeans.io.sources.scaling import Method, Scaling, scaling_of
from veilmeans.io.sources.scan import Scan
from veilmeans.io.sources.source_files import BatchLimits
from veilmeans.io.storage.encoded_shards import EncodedData, read_ids, read_rows
from veilmeans.schemas.arrays import Real
from veilmeans.schemas.errors import InputError

FORMATS = ["parquet", "csv", "csv.gz", "arrow", "feather", "ipc"]
SMALL = BatchLimits(text_bytes=64, cells=8)
"""Batches of a few rows."""


class MemoryFileSystem(FileSystem):
    """A file system in memory for `mem://name`; like Beam's own, it decompresses by a name's ending by default."""

    files: ClassVar[dict[str, bytes]] = {}

    @classmethod
    def scheme(cls) -> str:
        return "mem"

    def join(self, basepath: str, *paths: str) -> str:
        return "/".join([basepath.rstrip("/"), *paths])

    def split(self, path: str) -> tuple[str, str]:
        head, _, tail = path.rpartition("/")
        return head, tail

    def has_dirs(self) -> bool:
        return False

    def _list(self, dir_or_prefix: str) -> Iterator[FileMetadata]:
        for path, content in self.files.items():
            if path.startswith(dir_or_prefix):
                yield FileMetadata(path, len(content))

    def exists(self, path: str) -> bool:
        return path in self.files

    def open(self, path: str, mime_type: str = "", compression_type: str = CompressionTypes.AUTO) -> Any:  # noqa: ARG002
        if path not in self.files:
            raise FileNotFoundError(path)
        kind = CompressionTypes.detect_compression_type(path) if compression_type == "auto" else compression_type
        stored = io.BytesIO(self.files[path])
        return stored if kind == CompressionTypes.UNCOMPRESSED else CompressedFile(stored, kind)

    def metadata(self, path: str) -> FileMetadata:
        return FileMetadata(path, len(self.files[path]))

    def size(self, path: str) -> int:
        return len(self.files[path])

    def _unused(self, *_: Any) -> Any:
        raise NotImplementedError

    mkdirs = create = copy = rename = last_updated = checksum = delete = _unused


def write_table(file: Path, table: pa.Table, rows: int = 3) -> str:
    """Write a table in the format that the file's name states, in batches of some rows; return the path."""
    if file.suffix == ".parquet":
        pa.parquet.write_table(table, file, row_group_size=rows)
    elif file.suffix == ".feather":
        pa.feather.write_feather(table, file, compression="zstd", chunksize=rows)
    elif file.suffix in (".arrow", ".ipc"):
        new = pa.ipc.new_file if file.suffix == ".arrow" else pa.ipc.new_stream
        with new(file, table.schema) as writer:
            writer.write_table(table, rows)
    else:
        with gzip.open(file, "wb") if file.suffix == ".gz" else file.open("wb") as sink:
            pa.csv.write_csv(table, sink)
    return str(file)


def write_glob(folder: Path, kind: str, table: pa.Table, cuts: Sequence[int]) -> str:
    """Write a table as several files, cut at some rows; return the glob that matches them."""
    new = folder / uuid4().hex
    new.mkdir()
    ends = sorted({0, table.num_rows, *(cut for cut in cuts if cut < table.num_rows)})
    for i, (start, end) in enumerate(pairwise(ends)):
        write_table(new / f"{i:02d}.{kind}", table.slice(start, end - start), rows=2)
    return f"{new}/*.{kind}"


def table_with_ids(rows: Sequence[Sequence[float]]) -> pa.Table:
    """A table with the columns id (r0, r1, …), c0, c1, …"""
    columns = np.array(rows, np.float64).T
    return pa.table({"id": [f"r{i}" for i in range(len(rows))]} | {f"c{i}": c for i, c in enumerate(columns)})


def write_svmlight(file: Path, rows: Real, base: int = 1) -> str:
    """Write rows as svmlight text with indices from `base`; return the path."""
    dump_svmlight_file(rows, np.arange(len(rows)), str(file), zero_based=base == 0)
    return str(file)


def write_npz(file: Path, **members: Any) -> str:
    """Write an .npz archive; return the path."""
    np.savez(file, **members)
    return str(file)


def write_csr_npz(file: Path, **changed: Any) -> str:
    """Write the matrix [[1, 0], [0, 2]], with some members changed; None leaves one out."""
    members = {"format": b"csr", "shape": [2, 2], "indptr": [0, 1, 2], "indices": [0, 1], "data": [1.0, 2.0]}
    return write_npz(file, **{name: value for name, value in (members | changed).items() if value is not None})


def scale_by(scan: Scan, method: Method = "none") -> Scaling:
    """Return the scaling of all columns by a method."""
    return scaling_of(method, scan.low, scan.high, scan.mean, scan.deviation)


def decode_rows(data: EncodedData) -> Real:
    """Decode all shards into one dense matrix."""
    return np.concatenate([fixed.decode(read_rows(data.folder, i).toarray()) for i in range(data.shards)])


def read_all_ids(data: EncodedData) -> list[Any]:
    """Read the ids of all shards."""
    return [value for i in range(data.shards) for value in read_ids(data.folder, i).to_pylist()]


def input_error(call: Callable[[], object], folder: Path) -> str:
    """Return the sentence of the InputError that a call raises, with paths relative to `folder`."""
    with pytest.raises(InputError) as raised:
        call()
    return raised.value.sentence.replace(f"{folder}/", "")


class ReadCounter:
    """A stand-in for `open_file` that counts how often files are opened and how many of their bytes are read."""

    def __init__(self) -> None:
        self.opened: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def open_file(self, file: str, mapped: bool = False) -> pa.NativeFile:
        del mapped
        self.opened[file] += 1
        return pa.PythonFile(_CountedFile(file, self.bytes), "r")


class _CountedFile(io.FileIO):
    def __init__(self, file: str, counts: Counter[str]) -> None:
        super().__init__(file)
        self._file, self._counts = file, counts

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(-1 if size is None else size) or b""
        self._counts[self._file] += len(data)
        return data


def counted_reads(monkeypatch: pytest.MonkeyPatch) -> ReadCounter:
    """Count from now on what is read of sources."""
    counter = ReadCounter()
    for module in (source_files, tables, npz):
        monkeypatch.setattr(module, "open_file", counter.open_file)
    return counter
