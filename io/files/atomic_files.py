"""Atomic files: written beside their place, then renamed into it, so that a reader sees all of a file or nothing."""

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa

from veilmeans.schemas.arrays import Array, Arrays, from_stream, to_batch, write_stream
from veilmeans.schemas.errors import StorageError


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with atomic_write(path) as part:
        part.write_text(text)


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file atomically."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file; None if it does not exist."""
    try:
        return parse_json(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None


def parse_json(text: str | bytes) -> Any:
    """Parse JSON; a ValueError also if it is nested more deeply than Python can follow."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def make_private_folder(folder: Path) -> None:
    """Make a folder, and those above it, for this user only."""
    with disk_errors(folder):
        for each in reversed([folder, *folder.parents]):
            if not each.exists():
                each.mkdir(mode=0o700, exist_ok=True)


def write_arrays(path: Path, arrays: Arrays) -> None:
    """Write arrays atomically as an Arrow IPC stream, which can be memory-mapped."""
    with atomic_write(path) as part, pa.OSFile(str(part), "wb") as file:
        write_stream(to_batch(arrays), file)


def map_arrays(path: Path) -> dict[str, Array]:
    """Map the arrays of a file that `write_arrays` wrote."""
    with pa.memory_map(str(path)) as source:
        return from_stream(source)


def disk_error(folder: Path, error: OSError) -> StorageError:
    """Return the error of a full or failing disk."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageError(f"the disk of {folder} is full: free some space and rerun; nothing is lost")
    return StorageError(f"{folder} cannot be written: {error.strerror}")


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Turn an OSError into the error of a full or failing disk."""
    try:
        yield
    except OSError as error:
        raise disk_error(folder, error) from None


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a path to write to, which then replaces `path`; two writers at once do not disturb each other.

    A new file is for this user only; one that is replaced keeps its mode.
    """
    part = path.with_name(f"{path.name}.{uuid4().hex}.part")
    make_private_folder(path.parent)
    try:
        part.touch(mode=0o600, exist_ok=False)
        if path.exists():
            part.chmod(path.stat().st_mode & 0o777)
        yield part
        part.replace(path)
    except OSError as error:
        raise disk_error(path.parent, error) from None
    finally:
        with suppress(OSError):  # it has been renamed, or could not be made
            part.unlink()


def check_writable(folder: Path) -> None:
    """Refuse a folder that could not be made or written to."""
    existing = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    if not existing.is_dir():
        raise StorageError(f"{folder} cannot be written: {existing} is a file")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise StorageError(f"{folder} cannot be written: Permission denied")
