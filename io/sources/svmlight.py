"""svmlight text, parsed in batches: one row in a line, `label index:value …`, indices ascending.

Labels, `qid:` and comments (#) are ignored. Indices are those of the file, whether they count from 0 or 1.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from veilmeans.io.sources.source_files import BatchLimits, open_text
from veilmeans.schemas.arrays import Real
from veilmeans.schemas.errors import InputError

_COMMENT = re.compile(rb"#[^\n]*")
_QID = re.compile(rb"(?<=[ \t])qid:\S*")
_FORM = "is not of the form `label index:value …`"
_LINE_FEED, _COLON, _PLUS = b"\n:+"
_BLANK = np.isin(np.arange(256), list(b" \t\r\n\v\f"))


@dataclass(frozen=True)
class ParsedLines:
    """Rows in CSR form: the number of values of each, their indices, the values; and each row's line, from 1."""

    counts: NDArray[np.int64]
    indices: NDArray[np.int64]
    values: Real
    lines: NDArray[np.int64]


class _LineError(Exception):
    """The mistake in some line of a batch."""


def read_lines(file: str, limits: BatchLimits) -> Iterator[ParsedLines]:
    """Read the rows of a file in batches."""
    lines_before = 0
    for text in _complete_lines(file, limits.text_bytes):
        yield _parse_file_lines(file, text, lines_before)
        lines_before += text.count(b"\n")


def _complete_lines(file: str, size: int) -> Iterator[bytes]:
    """Read the text in pieces of about `size` bytes that end with a line."""
    unfinished: list[bytes] = []
    with open_text(file) as stream:
        while piece := stream.read(size):
            head, end, rest = piece.rpartition(b"\n")
            if end:
                yield b"".join((*unfinished, head, end))
                unfinished = []
            unfinished.append(rest)
    last = b"".join(unfinished)
    if last:
        yield last + b"\n"


def _parse_file_lines(file: str, text: bytes, lines_before: int) -> ParsedLines:
    """Parse lines; an InputError names the first bad one."""
    plain = _without_comments(text)
    try:
        return _parse(plain, lines_before)
    except _LineError:
        for number, line in enumerate(plain.split(b"\n"), lines_before + 1):
            try:
                _parse(line + b"\n", 0)
            except _LineError as error:
                raise InputError(f"{file}, line {number:,} {error}: correct it") from None
        raise


def _without_comments(text: bytes) -> bytes:
    """Remove comments and query numbers."""
    if b"#" in text:
        text = _COMMENT.sub(b"", text)
    return _QID.sub(b"", text) if b"qid:" in text else text


def _parse(text: bytes, lines_before: int) -> ParsedLines:
    """Split the text into words at spaces; each must be a label, the first of its line, or index:value."""
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
    digits = letters[~blank & (letters != _COLON) & ~_inside(words[label], ends[label], len(letters))]
    pairs = _parse_pairs(digits, lengths)
    row = np.cumsum(label)[~label] - 1
    _check_pairs(pairs, row)
    return ParsedLines(
        np.bincount(row, minlength=int(label.sum())).astype(np.int64),
        pairs[:, 0].astype(np.int64),
        np.ascontiguousarray(pairs[:, 1]),
        line[label] + lines_before + 1,
    )


def _inside(starts: NDArray[np.intp], ends: NDArray[np.intp], size: int) -> NDArray[np.bool_]:
    """Mark the positions that are inside one of the spans."""
    steps = np.zeros(size + 1, np.int8)
    steps[starts] += 1
    steps[ends] -= 1
    return np.cumsum(steps[:-1], dtype=np.int8) > 0


def _parse_pairs(letters: NDArray[np.uint8], lengths: NDArray[np.intp]) -> Real:
    """Parse numbers written without spaces, of given lengths, into pairs. Arrow is many times faster than numpy."""
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    plus = letters == _PLUS
    if plus.any():  # Arrow knows no sign before a number but "-"
        plus &= np.isin(np.arange(len(letters)), offsets)
        letters, offsets = letters[~plus], offsets - np.concatenate([[0], np.cumsum(plus)])[offsets]
    buffers = pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(letters)
    try:
        numbers = pa.StringArray.from_buffers(len(lengths), *buffers).cast(pa.float64())
    except pa.ArrowInvalid:
        raise _LineError(_FORM) from None
    pairs: Real = numbers.to_numpy().reshape(-1, 2)
    return pairs


def _check_pairs(pairs: Real, row: NDArray[np.int64]) -> None:
    indices = pairs[:, 0]
    if not ((indices >= 0) & (indices < 1 << 31) & (indices == np.floor(indices))).all():
        raise _LineError("has an index that is no integer below 2^31")
    if ((np.diff(indices) <= 0) & (np.diff(row) == 0)).any():
        raise _LineError("has indices that do not ascend")
    if not np.isfinite(pairs[:, 1]).all():
        raise _LineError("has a value that is no finite number")
