"""The files that a source names, on the local disk or any Beam filesystem: found, opened, digested; their formats."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from apache_beam.io.filesystem import CompressionTypes
from apache_beam.io.filesystems import FileSystems

from veilmeans.schemas.errors import InputError

READ_BYTES = 1 << 20
BLOCK_BYTES = 1 << 22
"""Bytes of a text file in one block."""
BLOCK_CELLS = 1 << 20
"""Rows × columns of one block, or its nonzeros where they are sparse, at most."""
_KINDS = {
    ".parquet": "Parquet", ".csv": "CSV", ".csv.gz": "CSV", ".arrow": "IPC", ".feather": "IPC", ".ipc": "IPC",
    ".npz": "npz", ".svm": "svmlight", ".libsvm": "svmlight", ".svmlight": "svmlight",
    ".svm.gz": "svmlight", ".libsvm.gz": "svmlight", ".svmlight.gz": "svmlight",
}  # fmt: skip


def find_files(source: str) -> tuple[str, ...]:
    """The files that a path or a glob names, sorted, all of one format."""
    with reading(source):
        files = _matches(source.removeprefix("file://"))
    if not files:
        several = any(sign in source for sign in "*?[")
        raise InputError(f"no file matches {source}" if several else f"the data file {source} does not exist")
    for file in files:
        if kind_of(file) != kind_of(files[0]):
            raise InputError(f"{files[0]} and {file} are not of one format: a glob must match files of one format only")
    return files


def digest_of(files: Sequence[str]) -> str:
    """The hex SHA-256 of the SHA-256s of the files' bytes, in order."""
    whole = hashlib.sha256()
    for file in files:
        whole.update(_file_digest(file))
    return whole.hexdigest()


def kind_of(file: str) -> str:
    """The format that a file's name tells."""
    for ending, kind in _KINDS.items():
        if file.lower().endswith(ending):
            return kind
    raise InputError(f"{file} has an unknown format: its name must end in one of {', '.join(_KINDS)}")


def open_file(file: str, mapped: bool = False) -> pa.NativeFile:
    """The bytes as they are stored."""
    if _is_remote(file):
        return pa.PythonFile(FileSystems.open(file, compression_type=CompressionTypes.UNCOMPRESSED), "r")
    return pa.memory_map(file) if mapped else pa.OSFile(file)


@contextmanager
def open_text(file: str) -> Iterator[pa.NativeFile]:
    """The bytes, unpacked where the name ends in .gz."""
    with open_file(file) as stream:
        yield pa.CompressedInputStream(stream, "gzip") if file.lower().endswith(".gz") else stream


@contextmanager
def reading(file: str) -> Iterator[None]:
    """What goes wrong with a file, in a sentence."""
    try:
        yield
    except FileNotFoundError:
        raise InputError(f"the data file {file} does not exist") from None
    except (OSError, pa.ArrowException, ValueError) as error:
        what = str(error).partition("\n")[0]
        raise InputError(f"the data file {file} cannot be read: {what}") from None


def _is_remote(path: str) -> bool:
    return "://" in path


def _matches(source: str) -> tuple[str, ...]:
    if _is_remote(source):
        return tuple(sorted(found.path for found in FileSystems.match([source])[0].metadata_list))
    path = Path(source)
    if path.is_dir():
        raise InputError(f"{source} is a folder: name a file, or a glob such as {path / '*.parquet'}")
    return (source,) if path.exists() else _local_glob(path.absolute())


def _local_glob(pattern: Path) -> tuple[str, ...]:
    """Not Beam's, which walks through all folders below."""
    found = Path(pattern.anchor).glob(str(pattern.relative_to(pattern.anchor)))
    return tuple(sorted(str(path) for path in found if path.is_file()))


def _file_digest(file: str) -> bytes:
    digest = hashlib.sha256()
    with reading(file), open_file(file) as stream:
        while part := stream.read(READ_BYTES):
            digest.update(part)
    return digest.digest()
