"""Kinds with ring elements of two parties by OTs: DaBit, Inject, Mul, Trunc.

A bit c of the chooser times a word y of the other is shared by one OT and one word,

  other     sends e = m_0 − m_1 + y, keeps −m_0            chooser    m_c + c·e = m_0 + c·y

and by the OT alone where y may be any uniform word: y = m_1 − m_0.

  DaBit    r = c ⊕ b,  ⟨r⟩ = c + b − 2·c·b                                  1 COT, 8 bytes
  Inject   r = c_0 ⊕ c_1: r·a_1 = c_1·a_1 + c_0·(1 − 2c_1)·a_1, the word being uniform; r·a_0 likewise; ⟨r⟩ as above
                                                                            2 COTs, 8 bytes; 16 more for each further
                                                                            bit of the same a
  Mul      a_i·b_j = Σ 2^l·(bit l of a_i)·b_j mod 2^(64−l) (Gilboa)         128 COTs, 512 bytes
  Trunc    r = R_0 ⊕ R_1 bit by bit: ⟨r⟩, ⟨r ≫ f⟩, ⟨r_63⟩ from ⟨(R_0)_l·(R_1)_l⟩  64 COTs, 512 bytes
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from veilmeans.crypto import bits, prg
from veilmeans.crypto.correlations import DaBit, Inject, Mul, Trunc
from veilmeans.crypto.ot.ot_arrays import MessageShapes, OtRequest, OtSide
from veilmeans.schemas.arrays import Array, Arrays

_BITS = np.arange(64, dtype=np.uint64)
_ONE, _TWO = np.uint64(1), np.uint64(2)


def _words(count: int, chooser: int, width: int = 1) -> OtRequest:
    return OtRequest(chooser, count, width, "words")


def _halves(count: int) -> Iterator[tuple[int, slice]]:
    """The values by their chooser: both parties choose, and send, for half of them."""
    middle = count // 2
    return ((chooser, part) for chooser, part in enumerate((slice(0, middle), slice(middle, count))))


def correct(zero: Array, one: Array, y: Array) -> Array:
    """e = m_0 − m_1 + y."""
    return zero - one + y


def _chosen(side: OtSide, word: int, e: Array) -> Array:
    """The chooser's share of c·y."""
    share: Array = side.first[word] + side.second * e
    return share


def _random_bits(key: bytes, count: int) -> Array:
    packed = np.empty(-(-count // 8), np.uint8)
    prg.fill(key, packed)
    return np.unpackbits(packed, count=count)


@dataclass(frozen=True)
class DaBitByOt:
    """The recipe for `DaBit`."""

    kind: DaBit

    def requests(self) -> list[OtRequest]:
        return [_words(part.stop - part.start, chooser) for chooser, part in _halves(self.kind.count)]

    def message_shapes(self, party: int) -> MessageShapes:
        return {"r": ((self.requests()[1 - party].count,), np.uint64)}

    def message(self, party: int, sides: Sequence[OtSide], key: bytes) -> dict[str, Array]:
        offered = sides[1 - party]
        return {"r": correct(offered.first[0], offered.second[0], self._own(party, key))}

    def parts(self, party: int, sides: Sequence[OtSide], key: bytes, received: Arrays) -> dict[str, Array]:
        bit, r = np.empty(self.kind.count, np.uint8), np.empty(self.kind.count, np.uint64)
        for chooser, part in _halves(self.kind.count):
            mine = chooser == party
            bit[part] = sides[chooser].second if mine else self._own(party, key)
            product = _chosen(sides[chooser], 0, received["r"]) if mine else -sides[chooser].first[0]
            r[part] = bit[part] - _TWO * product
        return {"bit": bits.pack(bit), "r": r}

    def _own(self, party: int, key: bytes) -> Array:
        return _random_bits(key, self.requests()[1 - party].count)


@dataclass(frozen=True)
class InjectByOt:
    """The recipe for `Inject`: word 0 of an OT is for r·a, word 1 for ⟨r⟩."""

    kind: Inject

    def requests(self) -> list[OtRequest]:
        return [_words(self.kind.count, chooser, 2) for chooser in range(2)]

    def message_shapes(self, party: int) -> MessageShapes:
        further = self.kind.count - self.kind.count // self.kind.times
        part = dict(_halves(self.kind.count))[1 - party]
        return {"a": ((further,), self.kind.dtype), "r": ((part.stop - part.start,), self.kind.dtype)}

    def message(self, party: int, sides: Sequence[OtSide], _key: bytes) -> dict[str, Array]:
        offered, part = sides[1 - party], dict(_halves(self.kind.count))[1 - party]
        own = sides[party].second.astype(np.uint64)
        further = slice(self.kind.count // self.kind.times, None)
        signed = sign_of(own) * np.tile(self._own(party, sides), self.kind.times)
        a = correct(offered.first[0], offered.second[0], signed)[further]
        r = correct(offered.first[1], offered.second[1], own)[part]
        return {"a": a.astype(self.kind.dtype), "r": r.astype(self.kind.dtype)}

    def parts(self, party: int, sides: Sequence[OtSide], _key: bytes, received: Arrays) -> dict[str, Array]:
        chosen, offered, a = sides[party], sides[1 - party], self._own(party, sides)
        bit = chosen.second.astype(np.uint64)
        e = np.zeros(self.kind.count, np.uint64)
        e[self.kind.count // self.kind.times :] = received["a"]
        ra = bit * np.tile(a, self.kind.times) - offered.first[0] + _chosen(chosen, 0, e)
        r = np.empty(self.kind.count, np.uint64)
        for chooser, part in _halves(self.kind.count):
            mine = chosen.first[1][part] + bit[part] * received["r"] if chooser == party else None
            r[part] = bit[part] - _TWO * (-offered.first[1][part] if mine is None else mine)
        cut = {"a": a, "r": r, "ra": ra}
        return {"bit": bits.pack(chosen.second), **{name: array.astype(self.kind.dtype) for name, array in cut.items()}}

    def _own(self, party: int, sides: Sequence[OtSide]) -> Array:
        """This party's share of a: (1 − 2c)·(m_1 − m_0) of the first bit."""
        offered, first = sides[1 - party], slice(0, self.kind.count // self.kind.times)
        own: Array = (offered.second[0] - offered.first[0])[first] * sign_of(sides[party].second[first])
        return own


def sign_of(bit: Array) -> Array:
    """1 − 2·bit."""
    sign: Array = _ONE - _TWO * bit.astype(np.uint64)
    return sign


@dataclass(frozen=True)
class MulByOt:
    """The recipe for `Mul`."""

    kind: Mul

    @property
    def _count(self) -> int:
        return int(np.prod(self.kind.shape, dtype=np.int64))

    def requests(self) -> list[OtRequest]:
        return [_words(64 * self._count, chooser) for chooser in range(2)]

    def message_shapes(self, _party: int) -> MessageShapes:
        return {"c": ((32, self._count), np.uint64)}

    def message(self, party: int, sides: Sequence[OtSide], _key: bytes) -> dict[str, Array]:
        zero, one = self._by_bit(sides[1 - party].first[0]), self._by_bit(sides[1 - party].second[0])
        return {"c": pack_products(correct(zero, one, one[0] - zero[0]))}

    def parts(self, party: int, sides: Sequence[OtSide], _key: bytes, received: Arrays) -> dict[str, Array]:
        chosen, offered = sides[party], sides[1 - party]
        choice = self._by_bit(chosen.second).astype(np.uint64)
        e = unpack_products(received["c"])
        a, zero = weigh(choice), self._by_bit(offered.first[0])
        b: Array = self._by_bit(offered.second[0])[0] - zero[0]
        c = a * b + weigh(self._by_bit(chosen.first[0]) + choice * e) - weigh(zero)
        return {name: array.reshape(self.kind.shape) for name, array in {"a": a, "b": b, "c": c}.items()}

    def _by_bit(self, values: Array) -> Array:
        return values.reshape(64, self._count)


def pack_products(e: Array) -> Array:
    """Pack e of the bits 1 … 63 of a: bits l and 64 − l need 64 − l and l bits of it, so they share a word."""
    low, high = e[1:33], e[63:31:-1]
    width = np.uint64(64) - _BITS[1:33, None]
    packed: Array = (low & (np.uint64(2**64 - 1) >> _BITS[1:33, None])) | (high << width)
    packed[31] = e[32]
    return packed


def unpack_products(packed: Array) -> Array:
    """Unpack e of all bits, with zeros for bit 0; high bits that weigh nothing are as they came."""
    e = np.zeros((64, packed.shape[1]), np.uint64)
    e[1:33] = packed
    e[63:32:-1] = packed[:31] >> (np.uint64(64) - _BITS[1:32, None])
    return e


def weigh(by_bit: Array) -> Array:
    """Σ 2^l · by_bit[l] mod 2^64."""
    total: Array = (by_bit << _BITS[: len(by_bit), None]).sum(0, dtype=np.uint64)
    return total


@dataclass(frozen=True)
class TruncByOt:
    """The recipe for `Trunc`."""

    kind: Trunc

    def requests(self) -> list[OtRequest]:
        return [_words(64 * (part.stop - part.start), chooser) for chooser, part in _halves(self.kind.count)]

    def message_shapes(self, party: int) -> MessageShapes:
        return {"e": ((self.requests()[1 - party].count,), np.uint64)}

    def message(self, party: int, sides: Sequence[OtSide], key: bytes) -> dict[str, Array]:
        offered = sides[1 - party]
        return {"e": correct(offered.first[0], offered.second[0], self._own(party, key))}

    def parts(self, party: int, sides: Sequence[OtSide], key: bytes, received: Arrays) -> dict[str, Array]:
        made = {name: np.empty(self.kind.count, np.uint64) for name in ("r", "high", "top")}
        for chooser, part in _halves(self.kind.count):
            mine = chooser == party
            own = (sides[chooser].second if mine else self._own(party, key)).reshape(64, -1).astype(np.uint64)
            product = _chosen(sides[chooser], 0, received["e"]) if mine else -sides[chooser].first[0]
            shared: Array = own - _TWO * product.reshape(64, -1)
            made["r"][part] = weigh(shared)
            made["high"][part] = weigh(shared[self.kind.shift :])
            made["top"][part] = shared[63]
        return made

    def _own(self, party: int, key: bytes) -> Array:
        return _random_bits(key, self.requests()[1 - party].count)
