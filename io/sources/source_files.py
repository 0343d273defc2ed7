"""The files of a source, on the local disk or any Beam filesystem: how they are found, opened and recognised.

A source is a path or a glob that a party configures. It is read in batches of a bounded size (`BatchLimits`), so that
memory does not grow with it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from veilmeans.schemas.errors import InputError

READ_BYTES = 1 << 20
_FORMATS = {
    ".parquet": "Parquet", ".csv": "CSV", ".csv.gz": "CSV", ".arrow": "IPC", ".feather": "IPC", ".ipc": "IPC",
    ".npz": "npz", ".svm": "svmlight", ".libsvm": "svmlight", ".svmlight": "svmlight",
    ".svm.gz": "svmlight", ".libsvm.gz": "svmlight", ".svmlight.gz": "svmlight",
}  # fmt: skip


@dataclass(frozen=True)
class BatchLimits:
    """The largest batch: bytes of a text file, and rows × columns (nonzeros, where they are sparse)."""

    text_bytes: int = 1 << 22
    cells: int = 1 << 20


DEFAULT_LIMITS = BatchLimits()


@dataclass(frozen=True)
class Source:
    """A source as it was configured, and its files, sorted and of one format."""

    name: str
    files: tuple[str, ...]
    limits: BatchLimits = DEFAULT_LIMITS

    def __str__(self) -> str:
        return self.name


def find_files(source: str) -> tuple[str, ...]:
    """Find the files that a path or a glob names: sorted, all of one format."""
    with file_errors(source):
        files = _matches(source.removeprefix("file://"))
    if not files:
        is_glob = any(sign in source for sign in "*?[")
        raise InputError(f"no file matches {source}" if is_glob else f"the data file {source} does not exist")
    for file in files:
        if format_of(file) != format_of(files[0]):
            raise InputError(f"{files[0]} and {file} are not of one format: a glob must match files of one format only")
    return files


def set_filesystem_options(source: str, flags: Sequence[str]) -> None:
    """Let Beam's filesystems use these flags, for the source and for all else that is on one of them."""
    if not flags and not _is_remote(source.removeprefix("file://")):
        return
    from apache_beam.io.filesystems import FileSystems
    from apache_beam.options.pipeline_options import PipelineOptions

    FileSystems.set_options(PipelineOptions(list(flags)))


def format_of(file: str) -> str:
    """Return the format that a file's name states."""
    for ending, name in _FORMATS.items():
        if file.lower().endswith(ending):
            return name
    raise InputError(f"{file} has an unknown format: its name must end in one of {', '.join(_FORMATS)}")


def open_file(file: str, mapped: bool = False) -> pa.NativeFile:
    """Open a file to read its bytes as they are stored."""
    if _is_remote(file):
        from apache_beam.io.filesystems import FileSystems

        return pa.PythonFile(FileSystems.open(file, compression_type="uncompressed"), "r")
    return pa.memory_map(file) if mapped else pa.OSFile(file)


@contextmanager
def open_text(file: str) -> Iterator[pa.NativeFile]:
    """Open a file to read its bytes, decompressed if the name ends in .gz."""
    with open_file(file) as stream:
        yield pa.CompressedInputStream(stream, "gzip") if file.lower().endswith(".gz") else stream


@contextmanager
def file_errors(file: str) -> Iterator[None]:
    """Turn every error of reading a file into an InputError that names it."""
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
        from apache_beam.io.filesystems import FileSystems

        return tuple(sorted(match.path for match in FileSystems.match([source])[0].metadata_list))
    path = Path(source)
    if path.is_dir():
        raise InputError(f"{source} is a folder: name a file, or a glob such as {path / '*.parquet'}")
    return (source,) if path.exists() else _local_glob(path.absolute())


def _local_glob(pattern: Path) -> tuple[str, ...]:
    """Match a local glob; Beam's own would walk through all folders below."""
    paths = Path(pattern.anchor).glob(str(pattern.relative_to(pattern.anchor)))
    return tuple(sorted(str(path) for path in paths if path.is_file()))
