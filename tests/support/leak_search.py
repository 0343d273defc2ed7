"""What a party has, what is hidden from it, and whether any of that is in it: as words, bytes, labels or numbers."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from support.in_process_run import received
from veilmeans.crypto import bits
from veilmeans.schemas.arrays import Array, from_stream
from veilmeans.schemas.config import JobConfig

CLUSTERS = 3
"""In every run that is looked at."""


# What a party has.
@dataclass(frozen=True)
class Evidence:
    """Every array that can be read out of a party's messages and files, and every file as it is."""

    arrays: Sequence[tuple[str, Array]]
    files: Sequence[tuple[str, bytes]]

    def without(self, *endings: str) -> "Evidence":
        """The same less the files of these names."""

        def stays(where: str) -> bool:
            return not any(re.search(ending, where) for ending in endings)

        return Evidence(
            [each for each in self.arrays if stays(each[0])], [each for each in self.files if stays(each[0])]
        )

    def having(self, where: str, content: Array | bytes) -> "Evidence":
        """The same and one thing more."""
        if isinstance(content, bytes):
            return replace(self, files=[*self.files, (where, content)])
        return replace(self, arrays=[*self.arrays, (where, content)])


def evidence_of(config: JobConfig, folder: Path) -> Evidence:
    """All that `config`'s party has."""
    files = [path for path in sorted((folder / config.party).rglob("*")) if path.is_file()]
    raw = [(str(path.relative_to(folder)), path.read_bytes()) for path in files]
    arrays = [(f"{where}: {name}", array) for where, data in raw for name, array in _arrays_in(where, data)]
    for key, message in received(config):
        arrays += [(f"message {key}: {name}", array) for name, array in message.items()]
    return Evidence(arrays, raw)


_PUBLIC = ("indptr", "indices", "shape", "block", "columns")
"""Arrays of a party's own files that tell shapes."""
_TAGGED = ("checkpoints", "centres", "assignments", "operands", "opened", "encrypted")
"""Folders whose files begin with a tag."""


def _arrays_in(where: str, data: bytes) -> Iterator[tuple[str, Array]]:
    if where.endswith(".parquet"):
        table = pq.read_table(pa.BufferReader(data))
        yield from ((name, table[name].to_numpy()) for name in table.column_names)
    if where.endswith(".arrow") and "ids" not in Path(where).name:
        tagged = any(f"/{kind}/" in where for kind in _TAGGED)
        arrays = from_stream(pa.py_buffer(data[64 if tagged else 0 :]))
        yield from ((name, array) for name, array in arrays.items() if name not in _PUBLIC)


# What is hidden.
@dataclass(frozen=True)
class Secrets:
    """What a party must not have: ring elements, real numbers, positions, and names and keys as they are."""

    words: Array
    reals: Array
    labels: Sequence[Array]
    texts: Sequence[bytes]

    @cached_property
    def wide(self) -> Array:
        """Eight bytes that mean something wherever they stand: five of them at least are neither 00 nor FF."""
        every = np.unique(np.concatenate([self.words, self.reals.view(np.uint64), *self._packed()]))
        busy = (every[:, None].view(np.uint8) + np.uint8(1)) > 1
        return every[busy.sum(axis=1) >= 5]

    def _packed(self) -> Iterator[Array]:
        """Positions as packed bits, eight bytes at each place; either way round, in our order and in numpy's."""
        for labels in self.labels:
            hot = (labels == np.arange(CLUSTERS)[:, None]).astype(np.uint8)
            ours = [*bits.pack_rows(hot), *np.packbits(hot, axis=1), *np.packbits(hot, axis=1, bitorder="little")]
            for row in (*ours, *(~each for each in ours)):
                yield windows(row.tobytes())


def windows(data: bytes) -> Array:
    """The eight bytes at each place, as words."""
    parts = [np.frombuffer(data[i : i + (len(data) - i) // 8 * 8], np.uint64) for i in range(min(8, len(data)))]
    return np.concatenate(parts) if parts else np.zeros(0, np.uint64)


def forms(values: Array) -> list[Array]:
    """x, −x, 2x, −2x."""
    flat = values.reshape(-1)
    return [flat, -flat, flat << np.uint64(1), -(flat << np.uint64(1))]


# Looking.
def leaks(found: Evidence, secrets: Secrets) -> list[str]:
    """Where any of the secrets is in the evidence."""
    return [
        *_words_in_arrays(found, secrets),
        *_bytes_in_files(found, secrets),
        *_labels_in_arrays(found, secrets),
        *_numbers_in_text(found, secrets),
    ]


def _words_in_arrays(found: Evidence, secrets: Secrets) -> Iterator[str]:
    for where, array in found.arrays:
        if array.dtype in (np.uint64, np.int64):
            yield from _hits(where, "word", array.view(np.uint64), secrets.words)
        if array.dtype == np.float64:
            yield from ([f"{where}: real"] if _close(array.reshape(-1), np.sort(secrets.reals)) else [])
        yield from _hits(where, "bytes", windows(np.ascontiguousarray(array).tobytes()), secrets.wide)


def _hits(where: str, what: str, words: Array, secret: Array) -> list[str]:
    """`secret` is sorted."""
    hits = words[secret[np.searchsorted(secret[:-1], words)] == words]
    return [f"{where}: {what} {int(hits[0]):x}"] if hits.size else []


def _close(values: Array, secret: Array) -> bool:
    """Whether one of the values is a secret but for the tenth digit; `secret` is sorted."""
    above = np.clip(np.searchsorted(secret, values), 1, len(secret) - 1)
    distance = np.minimum(np.abs(secret[above] - values), np.abs(secret[above - 1] - values))
    return bool((distance <= 1e-9 * np.abs(values)).any())


def _bytes_in_files(found: Evidence, secrets: Secrets) -> Iterator[str]:
    for where, data in found.files:
        yield from _hits(where, "bytes", windows(data), secrets.wide)
        yield from (f"{where}: text {text!r}" for text in secrets.texts if text in data)
    for where, array in found.arrays:
        data = array.tobytes() if array.dtype == np.uint8 else b""
        yield from (f"{where}: text {text!r}" for text in secrets.texts if text in data)


def _labels_in_arrays(found: Evidence, secrets: Secrets) -> Iterator[str]:
    """Positions as numbers or as zeros and ones, in integers of any width."""
    looked_for = [labels for labels in secrets.labels if len(labels) >= 24]
    hot = [(labels == j) for labels in looked_for for j in range(CLUSTERS)]
    runs = [each[:32].astype(np.uint8).tobytes() for each in (*looked_for, *hot)]
    for where, array in found.arrays:
        if array.dtype.kind in "iub" and array.size >= 24 and array.max() < CLUSTERS:
            small = np.ascontiguousarray(array).astype(np.uint8).tobytes()
            if any(run in small for run in runs):
                yield f"{where}: labels"


_NUMBER = re.compile(rb"(?<![\w.-])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.])")


def _numbers_in_text(found: Evidence, secrets: Secrets) -> Iterator[str]:
    words = np.concatenate([secrets.words.view(np.int64), secrets.words.view(np.int64) / 2**20])
    secret = np.sort(np.concatenate([secrets.reals, words[np.abs(words) > 1000]]))
    for where, data in found.files:
        if not where.endswith(("json", "log", "yaml", "txt")):
            continue
        for text in {text for text in _NUMBER.findall(data) if len(text.strip(b"-0.")) >= 7}:
            if _close(np.array([float(text)]), secret):
                yield f"{where}: text {text.decode()}"
