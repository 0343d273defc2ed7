"""Files that are there whole or not at all: written beside their place, then renamed into it."""

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa

from veilmeans.schemas.arrays import Arrays, to_batch, write_stream
from veilmeans.schemas.errors import StorageError


def write_text(path: Path, text: str) -> None:
    with replaced_file(path) as part:
        part.write_text(text)


def write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """What `write_json` wrote there, or None."""
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None


def private_folder(folder: Path) -> None:
    """A folder, and those above it, for this user only."""
    try:
        for place in reversed([folder, *folder.parents]):
            if not place.exists():
                place.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise disk_error(folder, error) from None


def write_arrays(path: Path, arrays: Arrays) -> None:
    """As an Arrow IPC stream, to be memory-mapped."""
    with replaced_file(path) as part, pa.OSFile(str(part), "wb") as file:
        write_stream(to_batch(arrays), file)


def disk_error(folder: Path, error: OSError) -> StorageError:
    """A full or failing disk, in a sentence."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageError(f"the disk of {folder} is full: free some space and start again; nothing is lost")
    return StorageError(f"{folder} cannot be written: {error.strerror}")


@contextmanager
def replaced_file(path: Path) -> Iterator[Path]:
    """A path to write to, which then takes the place of `path`; two writers at once do not disturb each other."""
    part = path.with_name(f"{path.name}.{uuid4().hex}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        yield part
        part.replace(path)
    except OSError as error:
        with suppress(OSError):  # where there is no folder, there is no part
            part.unlink()
        raise disk_error(path.parent, error) from None


def check_writable(folder: Path) -> None:
    """Refuse a folder that could not be made or written to."""
    place = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    if not place.is_dir():
        raise StorageError(f"{folder} cannot be written: {place} is a file")
    if not os.access(place, os.W_OK | os.X_OK):
        raise StorageError(f"{folder} cannot be written: Permission denied")
