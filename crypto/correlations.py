"""Kinds of correlated randomness, and how one seed per party and a few corrections make them.

A kind has parts. A uniform part's shares are expanded by its holders, each from its seed. A determined part is
determined by the free ones: all holders but the last expand a share, and the last one's is a correction,

  correction = value(free parts) − Σ_{other holders} share          (⊕ for parts shared by XOR)

which the dealer computes, and which is uniform to who receives it. Everything is addressed (`crypto.prg`), so a store
is seeds and corrections, and its size is that of the bound parts at one party.

  Mul       ⟨a⟩ ⟨b⟩ ⟨a·b⟩                        products of two shared arrays
  And       [a] [b_i] [a∧b_i]                    one bit vector and several others, by XOR
  PairAnd   a at one party, b at another, [a∧b]   bits that two parties know in the clear
  Inject    [r] ⟨r⟩ ⟨a⟩ ⟨r·a⟩                     a shared bit times a shared value
  DaBit     [r] ⟨r⟩                              a bit shared both ways
  Trunc     [r] ⟨r⟩ ⟨r ≫ f⟩ ⟨r_63⟩                truncation without wrap-around
  MatMul    U at the owner, V at the peer, ⟨UV⟩   a matrix in the clear times a shared one
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from veilmeans.crypto import bits, prg, ring
from veilmeans.crypto import ring_matmul as products
from veilmeans.schemas.address import Address

Array = NDArray[Any]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class CorrelationPart:
    """One array of a kind. `holders` are the parties that have a share of it.

    A part that outlives its round names in `at` the stage under which it is expanded, in iteration 0 of the same run
    and shard.
    """

    name: str
    shape: Shape
    holders: tuple[int, ...]
    sharing: Literal["sum", "xor"] = "sum"
    dtype: type[np.unsignedinteger[Any]] = np.uint64
    at: str | None = None

    def total(self, shares: Sequence[Array]) -> Array:
        """The value that shares add up to."""
        combine = np.bitwise_xor if self.sharing == "xor" else np.add
        return reduce(combine, shares)

    def remainder(self, value: Array, shares: Sequence[Array]) -> Array:
        """The last holder's share, given the others'."""
        if not shares:
            return value
        taken = self.total(shares)
        return value ^ taken if self.sharing == "xor" else value - taken


class Kind(Protocol):
    """What a round may ask for."""

    @property
    def name(self) -> str:
        """Part of every label: two kinds of one round never share randomness."""

    def uniform_parts(self) -> tuple[CorrelationPart, ...]:
        """Uniform parts."""

    def determined_parts(self) -> tuple[CorrelationPart, ...]:
        """Determined parts."""

    def determine(self, values: Mapping[str, Array]) -> dict[str, Array]:
        """The bound parts' values from the free parts'."""


def expand(seed: bytes, address: Address, scope: str, kind: Kind, part: CorrelationPart) -> Array:
    """One party's share of one part, from its seed. A part with a stage of its own is the same in every scope."""
    label = f"{kind.name}.{part.name}"
    if part.at is not None:
        fixed = Address(address.run, 0, part.at, address.shard)
        return prg.uniform(seed, fixed, label, part.shape, part.dtype)
    return prg.uniform(seed, address, scope + label, part.shape, part.dtype)


def corrections(seeds: Sequence[bytes], address: Address, scope: str, kind: Kind) -> dict[CorrelationPart, Array]:
    """The dealer's work at one address: each bound part's share for its last holder."""

    def shares(part: CorrelationPart, holders: Sequence[int]) -> list[Array]:
        return [expand(seeds[i], address, scope, kind, part) for i in holders]

    determined = kind.determine({part.name: part.total(shares(part, part.holders)) for part in kind.uniform_parts()})
    return {
        part: part.remainder(determined[part.name], shares(part, part.holders[:-1])) for part in kind.determined_parts()
    }


def _everyone(parties: int) -> tuple[int, ...]:
    return tuple(range(parties))


@dataclass(frozen=True)
class Mul:
    """⟨a⟩, ⟨b⟩ uniform and ⟨c⟩ = ⟨a·b⟩, element by element."""

    parties: int
    shape: Shape
    name: str = "mul"

    def uniform_parts(self) -> tuple[CorrelationPart, ...]:
        return tuple(CorrelationPart(name, self.shape, _everyone(self.parties)) for name in "ab")

    def determined_parts(self) -> tuple[CorrelationPart, ...]:
        return (CorrelationPart("c", self.shape, _everyone(self.parties)),)

    def determine(self, values: Mapping[str, Array]) -> dict[str, Array]:
        return {"c": values["a"] * values["b"]}


@dataclass(frozen=True)
class And:
    """[a], [b0] … uniform and [c0] = [a∧b0] …: one left operand for several right ones."""

    parties: int
    shape: Shape
    dtype: type[np.unsignedinteger[Any]] = np.uint8
    outputs: int = 1
    name: str = "and"

    def _part(self, name: str) -> CorrelationPart:
        return CorrelationPart(name, self.shape, _everyone(self.parties), "xor", self.dtype)

    def uniform_parts(self) -> tuple[CorrelationPart, ...]:
        return (self._part("a"), *(self._part(f"b{i}") for i in range(self.outputs)))

    def determined_parts(self) -> tuple[CorrelationPart, ...]:
        return tuple(self._part(f"c{i}") for i in range(self.outputs))

    def determine(self, values: Mapping[str, Array]) -> dict[str, Array]:
        return {f"c{i}": values["a"] & values[f"b{i}"] for i in range(self.outputs)}


@dataclass(frozen=True)
class PairAnd:
    """a known to party 0, b known to party 1, [c] = [a∧b] between the two."""

    shape: Shape
    dtype: type[np.unsignedinteger[Any]]
    name: str = "pairand"

    def uniform_parts(self) -> tuple[CorrelationPart, ...]:
        return (
            CorrelationPart("a", self.shape, (0,), "xor", self.dtype),
            CorrelationPart("b", self.shape, (1,), "xor", self.dtype),
        )

    def determined_parts(self) -> tuple[CorrelationPart, ...]:
        return (CorrelationPart("c", self.shape, (0, 1), "xor", self.dtype),)

    def determine(self, values: Mapping[str, Array]) -> dict[str, Array]:
        return {"c": values["a"] & values["b"]}


@dataclass(frozen=True)
class Inject:
    """A random bit r for each of `count` values, shared by XOR (packed) and by sum; ⟨a⟩ uniform, ⟨r·a⟩."""

    parties: int
    count: int
    name: str = "inject"

    def uniform_parts(self) -> tuple[CorrelationPart, ...]:
        everyone = _everyone(self.parties)
        return (
            CorrelationPart("bit", (bits.padded(self.count) // 8,), everyone, "xor", np.uint8),
            CorrelationPart("a", (self.count,), everyone),
        )

    def determined_parts(self) -> tuple[CorrelationPart, ...]:
        return tuple(CorrelationPart(name, (self.count,), _everyone(self.parties)) for name in ("r", "ra"))

    def determine(self, values: Mapping[str, Array]) -> dict[str, Array]:
        r = bits.unpack(values["bit"], self.count).astype(ring.DTYPE)
        return {"r": r, "ra": r * values["a"]}


@dataclass(frozen=True)
class DaBit:
    """A random bit for each of `count` values, shared by XOR (packed) and by sum."""

    parties: int
    count: int
    name: str = "dabit"

    def uniform_parts(self) -> tuple[CorrelationPart, ...]:
        return (CorrelationPart("bit", (bits.padded(self.count) // 8,), _everyone(self.parties), "xor", np.uint8),)

    def determined_parts(self) -> tuple[CorrelationPart, ...]:
        return (CorrelationPart("r", (self.count,), _everyone(self.parties)),)

    def determine(self, values: Mapping[str, Array]) -> dict[str, Array]:
        return {"r": bits.unpack(values["bit"], self.count).astype(ring.DTYPE)}


@dataclass(frozen=True)
class Trunc:
    """A uniform word r for each of `count` values: its bits by XOR; itself, r ≫ f and its top bit by sum."""

    parties: int
    count: int
    shift: int
    name: str = "trunc"

    def uniform_parts(self) -> tuple[CorrelationPart, ...]:
        return (CorrelationPart("bits", (self.count,), _everyone(self.parties), "xor"),)

    def determined_parts(self) -> tuple[CorrelationPart, ...]:
        return tuple(CorrelationPart(name, (self.count,), _everyone(self.parties)) for name in ("r", "high", "top"))

    def determine(self, values: Mapping[str, Array]) -> dict[str, Array]:
        r = values["bits"]
        return {"r": r, "high": r >> ring.DTYPE(self.shift), "top": r >> ring.DTYPE(63)}


@dataclass(frozen=True)
class Operand:
    """U alone: the mask of a matrix of `shape` that its owner sends to one peer, once per run."""

    owner: int
    peer: int
    shape: Shape
    at: str

    @property
    def name(self) -> str:
        return f"matmul.{self.owner}.{self.peer}"

    def uniform_parts(self) -> tuple[CorrelationPart, ...]:
        return (CorrelationPart("u", self.shape, (self.owner,), at=self.at),)

    def determined_parts(self) -> tuple[CorrelationPart, ...]:
        return ()

    def determine(self, values: Mapping[str, Array]) -> dict[str, Array]:
        del values
        return {}


@dataclass(frozen=True)
class MatMul:
    """U (rows × inner) at the owner, V (inner × columns) at the peer, ⟨UV⟩ between them.

    U masks a matrix that does not change during a run, so it is expanded under the fixed stage `left`; V is fresh in
    each iteration, and one V is never used twice. `transposed`: U is the mask of the inner × rows matrix whose
    transpose is the left operand.
    """

    owner: int
    peer: int
    rows: int
    inner: int
    columns: int
    left: str
    transposed: bool = False

    @property
    def name(self) -> str:
        return f"matmul.{self.owner}.{self.peer}"

    def uniform_parts(self) -> tuple[CorrelationPart, ...]:
        shape = (self.inner, self.rows) if self.transposed else (self.rows, self.inner)
        return (
            *Operand(self.owner, self.peer, shape, self.left).uniform_parts(),
            CorrelationPart("v", (self.inner, self.columns), (self.peer,)),
        )

    def determined_parts(self) -> tuple[CorrelationPart, ...]:
        return (CorrelationPart("w", (self.rows, self.columns), (self.owner, self.peer)),)

    def determine(self, values: Mapping[str, Array]) -> dict[str, Array]:
        left = values["u"].T if self.transposed else values["u"]
        return {"w": products.matmul(left, values["v"])}


def find_part(kind: Kind, name: str) -> CorrelationPart:
    """The part called `name`."""
    return next(part for part in (*kind.uniform_parts(), *kind.determined_parts()) if part.name == name)
