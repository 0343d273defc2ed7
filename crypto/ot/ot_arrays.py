"""Random OTs as arrays, in the form in which correlations use them: a request, and both parties' sides of it.

words    an OT gives one or two words: m_0, m_1 at the sender; m_c and c at the chooser
planes   an OT gives some bits, and 64 OTs share a word of each plane: bit e of OT 64·w + j is bit j of plane[e, w];
         m_0 and m_0 ⊕ m_1 at the sender; m_c, and c as a plane, at the chooser
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from veilmeans.crypto.ot.blocks import Bits, Blocks
from veilmeans.crypto.ot.ot_kernels import take_planes
from veilmeans.crypto.ot.random_ot import RandomOtReceiver, RandomOtSender, padded
from veilmeans.schemas.arrays import Array, Arrays

MessageShapes = dict[str, tuple[tuple[int, ...], type[np.unsignedinteger[Any]]]]
"""Name -> shape and type of each array of a message."""
_AT_ONCE = 1 << 15
"""OTs whose strings are in memory at once: few enough for a core's cache."""


@dataclass(frozen=True)
class OtRequest:
    """`count` random OTs of every other party to `chooser`, who has the same choice bits in all of them.

    A string has `width` bits, or words.
    """

    chooser: int
    count: int
    width: int
    form: Literal["words", "planes"]

    def __post_init__(self) -> None:
        if self.width > (128 if self.form == "planes" else 2) or (self.form == "planes" and self.count % 64):
            raise ValueError(f"an OT gives 128 bits, and planes have words of 64 OTs: {self}")


@dataclass(frozen=True)
class OtSide:
    """One party's side of a request: at the chooser m_c and c, at the sender m_0 and m_1 (planes: m_0 ⊕ m_1)."""

    first: Array
    second: Array


Sides = Sequence[Mapping[int, OtSide]]
"""One party's sides of requests, by peer: at the chooser of all peers, at another party of the chooser alone."""
Received = Sequence[Mapping[int, Arrays]]
"""The messages so far, by peer."""


def count_cots(requests: Sequence[OtRequest], chooser: int) -> int:
    """COTs of each sender to `chooser` that the requests use up."""
    return sum(padded(size) for each in requests if each.chooser == chooser for size in _pieces(each.count))


def take_chosen(ots: RandomOtReceiver, request: OtRequest) -> OtSide:
    """Take the chooser's side of a request."""
    strings, choices = [], []
    for size in _pieces(request.count):
        c, chosen = ots.take(size)
        strings.append(_in_form(request, chosen, size))
        choices.append(c.reshape(-1)[:size] if request.form == "words" else _packed(c.reshape(-1)[:size]))
    dtype = np.uint8 if request.form == "words" else np.uint64
    return OtSide(_joined(request, strings), np.concatenate([np.empty(0, dtype), *choices]))


def take_offered(ots: RandomOtSender, request: OtRequest) -> OtSide:
    """Take the sender's side of a request."""
    sides: tuple[list[Array], list[Array]] = ([], [])
    for size in _pieces(request.count):
        for side, strings in zip(sides, ots.take(size), strict=True):
            side.append(_in_form(request, strings, size))
    first, second = (_joined(request, side) for side in sides)
    return OtSide(first, second if request.form == "words" else first ^ second)


def _pieces(count: int) -> Iterator[int]:
    return (min(_AT_ONCE, count - start) for start in range(0, count, _AT_ONCE))


def _packed(choices: Bits) -> Array:
    return np.packbits(choices, bitorder="little").view(np.uint64)


def _in_form(request: OtRequest, strings: Blocks, count: int) -> Array:
    """The first `count` strings, blocks × 256 × 2, as width × words."""
    if request.form == "words":
        return np.ascontiguousarray(strings.reshape(-1, 2)[:count, : request.width].T)
    planes = np.empty((request.width, count // 64), np.uint64)
    for word in range(-(-request.width // 64)):
        take_planes(strings, word, planes[64 * word : 64 * word + 64])
    return planes


def _joined(request: OtRequest, pieces: Sequence[Array]) -> Array:
    return pieces[0] if len(pieces) == 1 else np.concatenate([np.empty((request.width, 0), np.uint64), *pieces], 1)
