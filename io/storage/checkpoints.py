"""What a party keeps of a run between iterations: its shares of the centroids, and of the last assignments.

  checkpoints/7.arrow     after seven iterations: shares of the centroids' norms, and the opened stop bit
  centres/7/2.arrow       shares of the columns of shard 2 of these centroids; all are there before the checkpoint is
  assignments/7/3.arrow   shares of the one-hot rows of shard 3, as the seventh iteration assigned them
  operands/3.arrow        the others' masked matrices of shard 3, sent once per run
  encrypted/7/0.arrow     the others' encrypted centroids of column shard 0, while the eighth iteration lasts

A file begins with an HMAC of its name and the rest under a key of this party, is written beside its place, synced and
renamed: it is there whole, or not at all, and a damaged one is refused. Folders are for this user only.
"""

import hmac
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from veilmeans.io.storage.atomic_files import disk_error, replaced_file
from veilmeans.schemas.arrays import Array, Arrays, from_stream, to_stream
from veilmeans.schemas.errors import StorageError

_TAG = 64
"""Bytes before the arrays: the HMAC, padded so that mapped arrays are aligned."""


@dataclass(frozen=True)
class Checkpoints:
    """The kept files of one run below `folder`."""

    folder: Path
    key: bytes = field(repr=False)

    def newest(self) -> int:
        """How many iterations are done; the file of that number is the newest. Files of other names are not ours."""
        files = (self.folder / "checkpoints").glob("*.arrow")
        return max((int(file.stem) for file in files if _is_number(file.stem)), default=-1)

    def write(self, done: int, arrays: Arrays) -> None:
        self._write(self._file(done), arrays)

    def read(self, done: int) -> dict[str, Array]:
        """A damaged one may be removed: messages of the iteration before it are still there (`train` sees to it)."""
        again = ", or remove it: a run that is not finished goes on from the checkpoint before it" if done else ""
        return self._read(self._file(done), again)

    def write_shard(self, kind: str, shard: int, arrays: Arrays) -> None:
        self._write(self._shard(kind, shard), arrays)

    def read_shard(self, kind: str, shard: int) -> dict[str, Array]:
        """What an iteration made is made again if its checkpoint is removed; others' operands are sent only once."""
        folder, _, done = kind.partition("/")
        again = ""
        if folder in (ASSIGNMENTS, _CENTRES) and done != "0":
            again = f", or remove {self._file(int(done))}: a run that is not finished does that iteration again"
        return self._read(self._shard(kind, shard), again)

    def has_shard(self, kind: str, shard: int) -> bool:
        return self._shard(kind, shard).exists()

    def shards(self, kind: str) -> list[int]:
        """Of which shards there are files of this kind."""
        return sorted(int(file.stem) for file in (self.folder / kind).glob("*.arrow") if _is_number(file.stem))

    def drop(self, kind: str, before: int) -> None:
        """Forget what was kept by iterations that no restart can go back to."""
        for old in (self.folder / kind).glob("*"):
            if _is_number(old.name) and int(old.name) < before:
                shutil.rmtree(old, ignore_errors=True)

    def _file(self, done: int) -> Path:
        return checkpoint_file(self.folder, done)

    def _shard(self, kind: str, shard: int) -> Path:
        return self.folder / kind / f"{shard}.arrow"

    def _tag(self, file: Path, content: pa.Buffer) -> bytes:
        name = str(file.relative_to(self.folder)).encode()
        keyed = hmac.new(self.key, len(name).to_bytes(4, "big") + name, "sha256")
        keyed.update(content)
        return keyed.digest().ljust(_TAG, b"\0")

    def _write(self, file: Path, arrays: Arrays) -> None:
        content = to_stream(arrays)
        self._make_folders(file.parent)
        with replaced_file(file) as part, part.open("wb") as target:
            target.write(self._tag(file, content))
            target.write(content)
            target.flush()
            os.fsync(target.fileno())
        _sync_folder(file.parent)

    def _make_folders(self, folder: Path) -> None:
        """`folder` and those above it, up to the run's own."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            for place in (*reversed(folder.relative_to(self.folder).parents), folder):
                (self.folder / place).mkdir(exist_ok=True, mode=0o700)
        except OSError as error:
            raise disk_error(folder, error) from None

    def _read(self, file: Path, again: str) -> dict[str, Array]:
        advice = f"restore it from a backup{again}, or start a new run id"
        try:
            with pa.memory_map(str(file)) as source:
                whole = source.read_buffer()
        except FileNotFoundError:
            raise StorageError(f"{file} is missing: {advice}") from None
        except (OSError, pa.ArrowException) as error:
            raise StorageError(f"{file} cannot be read ({_reason(error)}): {advice}") from None
        content = whole.slice(min(_TAG, whole.size))
        if not hmac.compare_digest(whole.slice(0, min(_TAG, whole.size)).to_pybytes(), self._tag(file, content)):
            raise StorageError(f"{file} is damaged or was made by another seed: {advice}")
        return from_stream(content)


def checkpoint_file(folder: Path, done: int) -> Path:
    """The checkpoint after `done` iterations."""
    return folder / "checkpoints" / f"{done}.arrow"


ASSIGNMENTS, ENCRYPTED, _CENTRES = "assignments", "encrypted", "centres"


def assignments(done: int) -> str:
    """The kind of shard file that holds the assignments of the iteration `done`."""
    return f"{ASSIGNMENTS}/{done}"


def centroids(done: int) -> str:
    """The kind of file, by shards of columns, that holds the centroids after `done` iterations."""
    return f"{_CENTRES}/{done}"


def encrypted(iteration: int) -> str:
    """The kind of file, by shards of columns, that holds the peers' encrypted centroids during an iteration."""
    return f"{ENCRYPTED}/{iteration}"


OPERANDS = "operands"


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit()


def _sync_folder(folder: Path) -> None:
    """A renamed file lasts only when its folder is on disk, too; not every filesystem can be asked for that."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or "damaged"
