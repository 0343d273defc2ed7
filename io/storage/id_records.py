"""Hashed ids on the party's own disk, in numbered parts: a record is the four words of a hash and the row's number."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from veilmeans.io.files.atomic_files import disk_errors, make_private_folder
from veilmeans.schemas.arrays import Array

RECORD_WORDS = 5
_BUFFERED = 1 << 14
"""Records of one part that wait to be written together."""


class IdRecordWriter:
    """A writer of records into `parts` files of a folder, which is emptied first."""

    def __init__(self, folder: Path, parts: int) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        make_private_folder(folder)
        self.folder, self.parts = folder, parts
        self._waiting: list[list[Array]] = [[] for _ in range(parts)]
        self._counts = [0] * parts

    def add(self, hashes: Array, rows: Array, numbers: Array) -> None:
        """Add records to the parts that `numbers` name."""
        order = np.argsort(numbers, kind="stable")
        records = np.empty((len(order), RECORD_WORDS), np.uint64)
        records[:, :4], records[:, 4] = hashes[order], rows[order]
        ends = np.searchsorted(numbers[order], np.arange(self.parts + 1))
        for number in np.flatnonzero(np.diff(ends)).tolist():
            self._waiting[number].append(records[ends[number] : ends[number + 1]])
            self._counts[number] += int(ends[number + 1] - ends[number])
            if self._counts[number] >= _BUFFERED:
                self._write(number)

    def close(self) -> None:
        """Write what waits; every part has a file then."""
        for number in range(self.parts):
            self._write(number)

    def _write(self, number: int) -> None:
        with disk_errors(self.folder), _file(self.folder, number).open("ab") as file:
            for records in self._waiting[number]:
                file.write(records.data)
        self._waiting[number], self._counts[number] = [], 0


def read_records(folder: Path, number: int) -> tuple[Array, Array]:
    """The hashes, n × 4, and the rows' numbers of one part."""
    records = np.fromfile(_file(folder, number), np.uint64).reshape(-1, RECORD_WORDS)
    return np.ascontiguousarray(records[:, :4]), records[:, 4].astype(np.int64)


def replace_records(folder: Path, number: int, hashes: Array, rows: Array) -> None:
    """Write one part anew."""
    records = np.concatenate([hashes, rows.astype(np.uint64)[:, None]], axis=1)
    with disk_errors(folder):
        records.tofile(_file(folder, number))


def all_parts(folder: Path) -> Iterator[int]:
    """The numbers of all parts."""
    return iter(range(sum(1 for _ in folder.glob("*.ids"))))


def _file(folder: Path, number: int) -> Path:
    return folder / f"{number}.ids"
