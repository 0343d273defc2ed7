"""The files of a party that its workers read and write, by their paths below `storage`.

They are on the party's own disk (`LOCAL`), or, where the configuration names a `shared` place, there and sealed
(`io.files.shared_files`): then a path below `storage` stands for an object below `shared`, and `attach` says so for
this process. Files that only the driver needs (claims, handshakes, transcripts, results, reports) are not read and
written through this interface: they stay on its disk.
"""

import json
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from shutil import rmtree
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from veilmeans.io.files.atomic_files import atomic_write
from veilmeans.schemas.arrays import Array, Arrays, from_stream, to_stream

Bytes: TypeAlias = bytes | pa.Buffer


class PartyFiles(Protocol):
    """Files that never change once they are written, but for those that are read with `fresh`."""

    def exists(self, path: Path) -> bool:
        """Return whether a file is there."""

    def read(self, path: Path, fresh: bool = False) -> pa.Buffer:
        """Return a file's content; raise a FileNotFoundError, or another OSError where it is damaged.

        `fresh`: as it is now; other files may come from a cache.
        """

    def write(self, path: Path, parts: Sequence[Bytes], durable: bool = False) -> None:
        """Write a file that readers see whole or not at all; `durable`: it survives a power cut then."""

    def names(self, folder: Path) -> list[str]:
        """List the names of what is in a folder, files and folders."""

    def delete(self, path: Path) -> None:
        """Delete a file, if it is there."""

    def delete_folder(self, folder: Path) -> None:
        """Delete a folder with all that is in it, if it is there."""


class LocalFiles:
    """Files on the party's own disk: for this user only, written beside their place and renamed, mapped when read."""

    def exists(self, path: Path) -> bool:
        return path.exists()

    def read(self, path: Path, fresh: bool = False) -> pa.Buffer:  # noqa: ARG002
        with pa.memory_map(str(path)) as source:
            return source.read_buffer()

    def write(self, path: Path, parts: Sequence[Bytes], durable: bool = False) -> None:
        with atomic_write(path) as part, part.open("wb") as target:
            for each in parts:
                target.write(each)
            if durable:
                target.flush()
                os.fsync(target.fileno())
        if durable:
            _sync_folder(path.parent)

    def names(self, folder: Path) -> list[str]:
        try:
            return [entry.name for entry in folder.iterdir()]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def delete(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def delete_folder(self, folder: Path) -> None:
        rmtree(folder, ignore_errors=True)


LOCAL = LocalFiles()
_attached: dict[Path, PartyFiles] = {}  # by `storage`: where this process finds the files that have paths below it


def attach(storage: Path, files: PartyFiles) -> None:
    """Let paths below `storage` stand for these files, in this process."""
    _attached[storage] = files


def detach(storage: Path) -> None:
    """Let paths below `storage` stand for files on this disk again."""
    _attached.pop(storage, None)


def files_at(path: Path) -> PartyFiles:
    """Return the files to which a path belongs."""
    return next((files for storage, files in _attached.items() if path.is_relative_to(storage)), LOCAL)


def write_file_arrays(path: Path, arrays: Arrays) -> None:
    """Write arrays as an Arrow IPC stream."""
    files_at(path).write(path, [to_stream(arrays)])


def read_file_arrays(path: Path, fresh: bool = False) -> dict[str, Array]:
    """Read the arrays that `write_file_arrays` wrote."""
    return from_stream(files_at(path).read(path, fresh))


def write_file_json(path: Path, content: Any) -> None:
    """Write a JSON file."""
    files_at(path).write(path, [(json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()])


def read_file_text(path: Path) -> str:
    """Read a text file."""
    return str(files_at(path).read(path).to_pybytes(), "utf-8")


def numbered(names: Iterable[str], suffix: str) -> list[int]:
    """The numbers among the names of files, ascending; other names are ignored."""
    stems = [name.removesuffix(suffix) for name in names if name.endswith(suffix)]
    return sorted(int(stem) for stem in stems if stem.isascii() and stem.isdigit())


def _sync_folder(folder: Path) -> None:
    """Sync a folder, without which a renamed file may be lost; not every filesystem can do it."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
