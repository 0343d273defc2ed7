"""A search for leaks: all that a party has, all that is hidden from it, and where the second occurs in the first."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from support.run_results import received
from veilmeans.crypto import bits
from veilmeans.schemas.arrays import Array, from_stream
from veilmeans.schemas.config import JobConfig

CLUSTERS = 3
"""The number of clusters in every run that is searched."""


# what a party has
@dataclass(frozen=True)
class Evidence:
    """Every array in a party's messages and files, and the bytes of every file."""

    arrays: Sequence[tuple[str, Array]]
    files: Sequence[tuple[str, bytes]]

    def without(self, *patterns: str) -> "Evidence":
        """Remove what matches one of these patterns."""

        def stays(where: str) -> bool:
            return not any(re.search(pattern, where) for pattern in patterns)

        return Evidence(
            [each for each in self.arrays if stays(each[0])], [each for each in self.files if stays(each[0])]
        )

    def having(self, where: str, content: Array | bytes) -> "Evidence":
        """Add an array or a file."""
        if isinstance(content, bytes):
            return replace(self, files=[*self.files, (where, content)])
        return replace(self, arrays=[*self.arrays, (where, content)])


def evidence_of(config: JobConfig, folder: Path) -> Evidence:
    """Collect all that a party has."""
    files = [path for path in sorted((folder / config.party).rglob("*")) if path.is_file()]
    contents = [(str(path.relative_to(folder)), path.read_bytes()) for path in files]
    arrays = [(f"{where}: {name}", array) for where, data in contents for name, array in _arrays_in(where, data)]
    for key, message in received(config):
        arrays += [(f"message {key}: {name}", array) for name, array in message.items()]
    return Evidence(arrays, contents)


_PUBLIC = ("indptr", "indices", "shape", "columns", "largest.shard")
"""Arrays of a party's own files that are public: they describe shapes."""
_TAGGED = ("checkpoints", "centroids", "assignments", "operands", "opened", "encrypted")
_TAGGED += ("scores", "opened-scores", "seeds", "seed-weights", "explained-centroids", "opened-explanations", "profile")
"""Folders whose files begin with a tag."""


def _arrays_in(where: str, data: bytes) -> Iterator[tuple[str, Array]]:
    if where.endswith(".parquet"):
        table = pq.read_table(pa.BufferReader(data))
        yield from ((name, table[name].to_numpy()) for name in table.column_names)
    if where.endswith(".arrow") and "ids" not in Path(where).name:
        tagged = any(f"/{kind}/" in where for kind in _TAGGED)
        arrays = from_stream(pa.py_buffer(data[64 if tagged else 0 :]))
        yield from ((name, array) for name, array in arrays.items() if name not in _PUBLIC)


# what is hidden from a party
@dataclass(frozen=True)
class Secrets:
    """The secrets of others: ring elements, real numbers, rows' clusters, and texts such as names and keys."""

    words: Array
    reals: Array
    labels: Sequence[Array]
    texts: Sequence[bytes]

    @cached_property
    def distinctive(self) -> Array:
        """Secrets of eight bytes that do not occur by chance: at least five bytes are neither 00 nor FF."""
        every = np.unique(np.concatenate([self.words, self.reals.view(np.uint64), *self._packed()]))
        random_bytes = (every[:, None].view(np.uint8) + np.uint8(1)) > 1
        return every[random_bytes.sum(axis=1) >= 5]

    def _packed(self) -> Iterator[Array]:
        """Pack one-hot rows, also inverted, in the layout of `crypto.bits` and of numpy; eight bytes at each offset."""
        for labels in self.labels:
            hot = (labels == np.arange(CLUSTERS)[:, None]).astype(np.uint8)
            packed = [*bits.pack_rows(hot), *np.packbits(hot, axis=1), *np.packbits(hot, axis=1, bitorder="little")]
            for row in (*packed, *(~each for each in packed)):
                yield windows(row.tobytes())


def windows(data: bytes) -> Array:
    """Read eight bytes at each offset, as words."""
    parts = [np.frombuffer(data[i : i + (len(data) - i) // 8 * 8], np.uint64) for i in range(min(8, len(data)))]
    return np.concatenate(parts) if parts else np.zeros(0, np.uint64)


def related_forms(values: Array) -> list[Array]:
    """List x, −x, 2x, −2x."""
    flat = values.reshape(-1)
    return [flat, -flat, flat << np.uint64(1), -(flat << np.uint64(1))]


# the search
def leaks(evidence: Evidence, secrets: Secrets) -> list[str]:
    """List where any of the secrets occurs in the evidence."""
    return [
        *_words_in_arrays(evidence, secrets),
        *_bytes_in_files(evidence, secrets),
        *_labels_in_arrays(evidence, secrets),
        *_numbers_in_text(evidence, secrets),
    ]


def _words_in_arrays(evidence: Evidence, secrets: Secrets) -> Iterator[str]:
    for where, array in evidence.arrays:
        if array.dtype in (np.uint64, np.int64):
            yield from _find_words(where, "word", array.view(np.uint64), secrets.words)
        if array.dtype == np.float64:
            yield from ([f"{where}: real"] if _occurs(array.reshape(-1), np.sort(secrets.reals)) else [])
        yield from _find_words(where, "bytes", windows(np.ascontiguousarray(array).tobytes()), secrets.distinctive)


def _find_words(where: str, what: str, words: Array, secret: Array) -> list[str]:
    """List the first of the words that is a secret; `secret` is sorted."""
    hits = words[secret[np.searchsorted(secret[:-1], words)] == words]
    return [f"{where}: {what} {int(hits[0]):x}"] if hits.size else []


def _occurs(values: Array, secret: Array) -> bool:
    """Return whether one of the values equals a secret in nine digits; `secret` is sorted."""
    above = np.clip(np.searchsorted(secret, values), 1, len(secret) - 1)
    distance = np.minimum(np.abs(secret[above] - values), np.abs(secret[above - 1] - values))
    return bool((distance <= 1e-9 * np.abs(values)).any())


def _bytes_in_files(evidence: Evidence, secrets: Secrets) -> Iterator[str]:
    for where, data in evidence.files:
        yield from _find_words(where, "bytes", windows(data), secrets.distinctive)
        yield from (f"{where}: text {text!r}" for text in secrets.texts if text in data)
    for where, array in evidence.arrays:
        data = array.tobytes() if array.dtype == np.uint8 else b""
        yield from (f"{where}: text {text!r}" for text in secrets.texts if text in data)


def _labels_in_arrays(evidence: Evidence, secrets: Secrets) -> Iterator[str]:
    """Search clusters as numbers or as zeros and ones, in integers of any width."""
    long_enough = [labels for labels in secrets.labels if len(labels) >= 24]
    hot = [(labels == j) for labels in long_enough for j in range(CLUSTERS)]
    runs = [each[:32].astype(np.uint8).tobytes() for each in (*long_enough, *hot) if _is_mixed(each[:32])]
    for where, array in evidence.arrays:
        if array.dtype.kind in "iub" and array.size >= 24 and array.max() < CLUSTERS:
            small = np.ascontiguousarray(array).astype(np.uint8).tobytes()
            if any(run in small for run in runs):
                yield f"{where}: labels"


def _is_mixed(run: Array) -> bool:
    """Return whether values are no run of zeros or ones with a few exceptions, which occurs anywhere by chance."""
    return bool(len(run) - np.unique(run, return_counts=True)[1].max() >= _EXCEPTIONS)


_EXCEPTIONS = 6
_NUMBER = re.compile(rb"(?<![\w.-])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.])")


def _numbers_in_text(evidence: Evidence, secrets: Secrets) -> Iterator[str]:
    words = np.concatenate([secrets.words.view(np.int64), secrets.words.view(np.int64) / 2**20])
    secret = np.sort(np.concatenate([secrets.reals, words[np.abs(words) > 1000]]))
    for where, data in evidence.files:
        if not where.endswith(("json", "log", "yaml", "txt")):
            continue
        for text in {text for text in _NUMBER.findall(data) if len(text.strip(b"-0.")) >= 7}:
            if _occurs(np.array([float(text)]), secret):
                yield f"{where}: text {text.decode()}"
