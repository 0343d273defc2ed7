"""Checkpoints of a run: a party's shares of the centroids and of the last assignments, after each iteration.

  checkpoints/7.arrow     after seven iterations: shares of the centroids' norms, and the opened stop bit
  centroids/7/2.arrow     shares of these centroids, column shard 2; written before the checkpoint
  assignments/7/3.arrow   shares of the one-hot rows of row shard 3, as the seventh iteration assigned them
  scores/8/3.arrow        shares of the rows' distances to the final centroids, after seven iterations
  operands/3.arrow        the peers' masked matrices of row shard 3, sent once per run
  encrypted/7/0.arrow     the peers' encrypted centroids of column shard 0, while the eighth iteration lasts
  seeds/2/0.arrow         shares of the third centroid that k-means++ has chosen, column shard 0; until checkpoint 0
  seed-weights/2/3.arrow  shares of the weights of row shard 3 when two centroids were chosen; until checkpoint 0

A file begins with an HMAC of its name and content under a key of this party. It is written atomically and synced; a
damaged one is refused. Folders are for this user only.
"""

import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from veilmeans.io.files.party_files import files_at, numbered
from veilmeans.schemas.arrays import Array, Arrays, from_stream, to_stream
from veilmeans.schemas.errors import StorageError
from veilmeans.schemas.run_folder import (
    ASSIGNMENTS,
    CENTROIDS,
    CHOSEN,
    ENCRYPTED,
    SCORES,
    SEED_WEIGHTS,
    SEEDS,
    RunFolder,
)

_NUMBER = re.compile("-?[0-9]+")  # the iterations of k-means++ are below 0
_TAG_SIZE = 64  # bytes before the arrays: the HMAC, padded so that mapped arrays are aligned


def _nothing_sent() -> None:
    """Nothing was sent that a peer could still need."""


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one run, with the shares of its shards, below `folder`.

    `await_delivery` returns when the peers have what was sent so far: a party does not go back before its checkpoint.
    """

    folder: RunFolder
    key: bytes = field(repr=False)
    await_delivery: Callable[[], None] = field(default=_nothing_sent, repr=False, compare=False)

    def newest(self) -> int:
        """Return the number of the newest checkpoint, which is how many iterations are done; -1 if there is none."""
        return max(checkpoint_numbers(self.folder), default=-1)

    def write(self, done: int, arrays: Arrays) -> None:
        """Write the checkpoint after `done` iterations, when the peers have all messages before it."""
        self.await_delivery()
        self._write(self.folder.checkpoint(done), arrays)

    def read(self, done: int) -> dict[str, Array]:
        """Read the checkpoint after `done` iterations.

        A damaged one may be removed: the messages of the iteration before it still exist (`train` keeps them).
        """
        remedy = ", or remove it: an unfinished run resumes from the checkpoint before it" if done else ""
        return self._read(self.folder.checkpoint(done), remedy, fresh=True)

    def write_shard(self, kind: str, shard: int, arrays: Arrays) -> None:
        """Write the arrays of one kind of one row or column shard."""
        self._write(self.folder.shard(kind, shard), arrays)

    def read_shard(self, kind: str, shard: int) -> dict[str, Array]:
        """Read the arrays of one kind of one shard.

        Removing the checkpoint of an iteration makes the run repeat it; the peers' operands are sent only once.
        """
        folder, _, done = kind.partition("/")
        remedy = ""
        if folder in (ASSIGNMENTS, CENTROIDS) and done != "0":
            last = max((n for n in checkpoint_numbers(self.folder) if n <= int(done)), default=int(done))
            remedy = f", or remove {self.folder.checkpoint(last)}: an unfinished run repeats that iteration"
        return self._read(self.folder.shard(kind, shard), remedy)

    def shards(self, kind: str) -> list[int]:
        """List the shards of which this kind of arrays was written."""
        return shard_numbers(self.folder, kind)

    def drop(self, kind: str, before: int | None = None) -> None:
        """Delete the arrays of iterations below `before` (None: all), to which no rerun can go back."""
        folder = self.folder.shares(kind)
        files = files_at(folder)
        for old in files.names(folder):
            if _NUMBER.fullmatch(old) and (before is None or int(old) < before):
                files.delete_folder(folder / old)

    def drop_all_but(self, kind: str, number: int | None) -> None:
        """Delete the arrays of one kind (None: all), except those of one iteration."""
        folder = self.folder.shares(kind)
        files = files_at(folder)
        if number is None:
            files.delete_folder(folder)
            return
        for old in files.names(folder):
            if old != str(number):
                files.delete_folder(folder / old)

    def drop_old(self, done: int) -> None:
        """Delete the checkpoints before that after `done` iterations: an ended run does not resume."""
        for number in checkpoint_numbers(self.folder):
            if number < done:
                files_at(self.folder.path).delete(self.folder.checkpoint(number))

    def read_file(self, file: Path) -> dict[str, Array]:
        """Read the arrays of any file of the run."""
        return self._read(file, "")

    def _tag(self, file: Path, content: pa.Buffer) -> bytes:
        name = str(file.relative_to(self.folder.path)).encode()
        keyed = hmac.new(self.key, len(name).to_bytes(4, "big") + name, "sha256")
        keyed.update(content)
        return keyed.digest().ljust(_TAG_SIZE, b"\0")

    def _write(self, file: Path, arrays: Arrays) -> None:
        content = to_stream(arrays)
        files_at(file).write(file, [self._tag(file, content), content], durable=True)

    def _read(self, file: Path, remedy: str, fresh: bool = False) -> dict[str, Array]:
        advice = f"restore it from a backup{remedy}, or start a new run id"
        try:
            tagged = files_at(file).read(file, fresh)
        except FileNotFoundError:
            raise StorageError(f"{file} is missing: {advice}") from None
        except (OSError, pa.ArrowException) as error:
            reason = getattr(error, "strerror", None) or "damaged"
            raise StorageError(f"{file} cannot be read ({reason}): {advice}") from None
        content = tagged.slice(min(_TAG_SIZE, tagged.size))
        tag = tagged.slice(0, min(_TAG_SIZE, tagged.size)).to_pybytes()
        if not hmac.compare_digest(tag, self._tag(file, content)):
            raise StorageError(f"{file} is damaged or was made by another seed: {advice}")
        return from_stream(content)


def checkpoint_numbers(folder: RunFolder) -> list[int]:
    """The numbers of iterations after which there are checkpoints, ascending."""
    return numbered(files_at(folder.path).names(folder.checkpoints), ".arrow")


def shard_numbers(folder: RunFolder, kind: str) -> list[int]:
    """The shards of which arrays of one kind are kept, ascending."""
    return numbered(files_at(folder.path).names(folder.shares(kind)), ".arrow")


def final_centroids(folder: RunFolder, iterations: int) -> str:
    """Name the kind of the centroids after the last of so many iterations: of the best start, if one was chosen."""
    return CHOSEN if files_at(folder.path).exists(folder.shard(CHOSEN, 0)) else centroids(iterations)


def assignments(done: int) -> str:
    """Name the kind of arrays, by row shards, that holds the assignments of iteration `done`."""
    return f"{ASSIGNMENTS}/{done}"


def scores(done: int) -> str:
    """Name the kind of arrays, by row shards, that holds the scores beside the assignments of iteration `done`."""
    return f"{SCORES}/{done}"


def centroids(done: int) -> str:
    """Name the kind of arrays, by column shards, that holds the centroids after `done` iterations."""
    return f"{CENTROIDS}/{done}"


def encrypted(iteration: int) -> str:
    """Name the kind of arrays, by column shards, that holds the peers' encrypted centroids during an iteration."""
    return f"{ENCRYPTED}/{iteration}"


def seeds(number: int) -> str:
    """Name the kind of arrays, by column shards, that holds the centroid that k-means++ chose as this one."""
    return f"{SEEDS}/{number}"


def seed_weights(chosen: int) -> str:
    """Name the kind of arrays, by row shards, that holds the rows' weights when so many centroids were chosen."""
    return f"{SEED_WEIGHTS}/{chosen}"
