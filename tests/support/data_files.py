"""Data files in every format, and a file system in memory."""

import gzip
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest
from apache_beam.io.filesystem import CompressedFile, CompressionTypes, FileMetadata, FileSystem

from veilmeans.io.sources import source_files as data_files

FORMATS = ["parquet", "csv", "csv.gz", "arrow", "feather", "ipc"]


class MemoryFileSystem(FileSystem):
    """Files in a dictionary, as `mem://name`; like Beam's own, it unpacks by a name's ending unless told not to."""

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


def write(file: Path, table: pa.Table, rows: int = 3) -> str:
    """The table as a file of the format that its name says, in batches of some rows."""
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


def small_blocks(monkeypatch: pytest.MonkeyPatch, size: int = 64, cells: int = 8) -> None:
    monkeypatch.setattr(data_files, "BLOCK_BYTES", size)
    monkeypatch.setattr(data_files, "BLOCK_CELLS", cells)
