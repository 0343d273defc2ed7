"""svmlight text, block by block: one row in a line, `label index:value …`, indices ascending.

Labels, `qid:` and comments (#) are passed over. Indices are as they stand in the file, whether they count from 0 or 1.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from veilmeans.io.sources import source_files as data_files
from veilmeans.io.sources.source_files import open_text
from veilmeans.schemas.errors import InputError

_COMMENT = re.compile(rb"#[^\n]*")
_QID = re.compile(rb"(?<=[ \t])qid:\S*")
_FORM = "is not of the form `label index:value …`"
_LINE_FEED, _COLON, _PLUS = b"\n:+"
_BLANK = np.isin(np.arange(256), list(b" \t\r\n\v\f"))


@dataclass(frozen=True)
class ParsedLines:
    """Rows in CSR form: how many nonzeros each has, their indices and values; and the line of each row, from 1."""

    counts: NDArray[np.int64]
    indices: NDArray[np.int64]
    values: NDArray[np.float64]
    lines: NDArray[np.int64]


class _LineError(Exception):
    """What is wrong with a line, but not with which."""


def read_lines(file: str) -> Iterator[ParsedLines]:
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


def _parsed(file: str, text: bytes, passed: int) -> ParsedLines:
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
    """Without comments and query numbers."""
    if b"#" in text:
        text = _COMMENT.sub(b"", text)
    return _QID.sub(b"", text) if b"qid:" in text else text


def _parse(text: bytes, passed: int) -> ParsedLines:
    """Words are found by the spaces around them; each must be a label, the first of its line, or index:value."""
    letters = np.frombuffer(text, np.uint8)
    blank = _BLANK[letters]
    words = np.flatnonzero(~blank & np.concatenate([[True], blank[:-1]]))
    ends = np.flatnonzero(~blank & np.concatenate([blank[1:], [True]])) + 1
    line = np.searchsorted(np.flatnonzero(letters == _LINE_FEED), words)
    label = np.concatenate([[True], line[1:] != line[:-1]])[: len(words)]
    colons = np.flatnonzero(letters == _COLON)
    if not np.array_equal(np.bincount(np.searchsorted(words, colons, side="right") - 1, minlength=len(words)), ~label):
        raise _LineError(_FORM)
    lengths = np.stack([colons - words[~label], ends[~label] - colons - 1], axis=1).reshape(-1)
    found = _numbers(letters[~blank & (letters != _COLON) & ~_within(words[label], ends[label], len(letters))], lengths)
    row = np.cumsum(label)[~label] - 1
    _check(found, row)
    return ParsedLines(
        np.bincount(row, minlength=int(label.sum())).astype(np.int64),
        found[:, 0].astype(np.int64),
        np.ascontiguousarray(found[:, 1]),
        line[label] + passed + 1,
    )


def _within(starts: NDArray[np.intp], ends: NDArray[np.intp], size: int) -> NDArray[np.bool_]:
    """Which places are in one of some spans."""
    steps = np.zeros(size + 1, np.int8)
    steps[starts] += 1
    steps[ends] -= 1
    return np.cumsum(steps[:-1], dtype=np.int8) > 0


def _numbers(letters: NDArray[np.uint8], lengths: NDArray[np.intp]) -> NDArray[np.float64]:
    """Numbers that stand one behind the other, in pairs. Arrow reads them many times faster than numpy."""
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    plus = letters == _PLUS
    if plus.any():  # Arrow knows no sign before a number but "-"
        plus &= np.isin(np.arange(len(letters)), offsets)
        letters, offsets = letters[~plus], offsets - np.concatenate([[0], np.cumsum(plus)])[offsets]
    buffers = pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(letters)
    try:
        found = pa.StringArray.from_buffers(len(lengths), *buffers).cast(pa.float64())
    except pa.ArrowInvalid:
        raise _LineError(_FORM) from None
    values: NDArray[np.float64] = found.to_numpy().reshape(-1, 2)
    return values


def _check(found: NDArray[np.float64], row: NDArray[np.int64]) -> None:
    indices = found[:, 0]
    if not ((indices >= 0) & (indices < 1 << 31) & (indices == np.floor(indices))).all():
        raise _LineError("has an index that is no whole number below 2^31")
    if ((np.diff(indices) <= 0) & (np.diff(row) == 0)).any():
        raise _LineError("has indices that do not ascend")
    if not np.isfinite(found[:, 1]).all():
        raise _LineError("has a value that is no finite number")
