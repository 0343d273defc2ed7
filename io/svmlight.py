"""svmlight text, block by block: one row in a line, `label index:value …`, indices ascending.

Labels, `qid:` and comments (#) are passed over. Indices are as they stand in the file, whether they count from 0 or 1.
"""

import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from veilmeans.io import data_files
from veilmeans.io.data_files import open_text
from veilmeans.schemas.errors import InputError

_COMMENT = re.compile(rb"#[^\n]*")
_QID = re.compile(rb"(?<=[ \t])qid:\S*")
_LABELS = re.compile(rb"^[^\s:]+(?=\s)", re.MULTILINE)
_FORM = "is not of the form `label index:value …`"
_LINE_FEED, _COLON, _SPACE = b"\n:\x20"


@dataclass(frozen=True)
class Lines:
    """Rows in CSR form: how many nonzeros each has, their indices and values; and the line of each row, from 1."""

    counts: NDArray[np.int64]
    indices: NDArray[np.int64]
    values: NDArray[np.float64]
    lines: NDArray[np.int64]


class _LineError(Exception):
    """What is wrong with a line, but not with which."""


def read_lines(file: str) -> Iterator[Lines]:
    """The rows of a file, some at a time."""
    passed = 0
    for text in _whole_lines(file):
        yield _parsed(file, text, passed)
        passed += text.count(b"\n")


def _whole_lines(file: str) -> Iterator[bytes]:
    """The text in parts that end with a line."""
    waiting: list[bytes] = []
    with open_text(file) as stream:
        while part := stream.read(data_files.BLOCK_BYTES):
            head, end, rest = part.rpartition(b"\n")
            if end:
                yield b"".join((*waiting, head, end))
                waiting = []
            waiting.append(rest)
    last = b"".join(waiting)
    if last:
        yield last + b"\n"


def _parsed(file: str, text: bytes, passed: int) -> Lines:
    plain = _plain(text)
    try:
        return _parse(plain, passed)
    except _LineError:
        for number, line in enumerate(plain.split(b"\n"), passed + 1):
            try:
                _parse(line + b"\n", 0)
            except _LineError as error:
                raise InputError(f"{file}, line {number:,} {error}: correct it") from None
        raise


def _plain(text: bytes) -> bytes:
    """Without comments and query numbers; many labels in a line are one."""
    if b"#" in text:
        text = _COMMENT.sub(b"", text)
    if b"qid:" in text:
        text = _QID.sub(b"", text)
    return _LABELS.sub(b"0", text) if b"," in text else text


def _parse(text: bytes, passed: int) -> Lines:
    """Words are found by the spaces before them; each must be a label, the first of its line, or index:value."""
    letters = np.frombuffer(text, np.uint8)
    blank = letters <= _SPACE
    words = np.flatnonzero(~blank & np.concatenate([[True], blank[:-1]]))
    line = np.searchsorted(np.flatnonzero(letters == _LINE_FEED), words)
    label = np.concatenate([[True], line[1:] != line[:-1]])[: len(words)]
    colons = np.searchsorted(words, np.flatnonzero(letters == _COLON), side="right") - 1
    pairs = np.bincount(colons, minlength=len(words))
    if not np.array_equal(pairs, ~label):
        raise _LineError(_FORM)
    numbers = _numbers(text.replace(b":", b" "))
    if len(numbers) != len(words) + len(colons):
        raise _LineError(_FORM)
    found = numbers[np.repeat(~label, pairs + 1)].reshape(-1, 2)
    row = np.cumsum(label)[~label] - 1
    _check(found, row)
    return Lines(
        np.bincount(row, minlength=int(label.sum())).astype(np.int64),
        found[:, 0].astype(np.int64),
        np.ascontiguousarray(found[:, 1]),
        line[label] + passed + 1,
    )


def _numbers(text: bytes) -> NDArray[np.float64]:
    """All numbers before the first word that is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            return np.fromstring(text, sep=" ") if text.strip() else np.empty(0)
        except ValueError:
            return np.empty(0)


def _check(found: NDArray[np.float64], row: NDArray[np.int64]) -> None:
    indices = found[:, 0]
    if not ((indices >= 0) & (indices < 1 << 31) & (indices == np.floor(indices))).all():
        raise _LineError("has an index that is no whole number below 2^31")
    if ((np.diff(indices) <= 0) & (np.diff(row) == 0)).any():
        raise _LineError("has indices that do not ascend")
    if not np.isfinite(found[:, 1]).all():
        raise _LineError("has a value that is no finite number")
