"""Kinds of correlated randomness, made from one seed per party and a few corrections.

A kind has parts. The holders of a uniform part expand their shares of it, each from its own seed. A determined part is
a function of the uniform ones: all its holders but the last expand a share, and the last one's share is a correction,

  correction = value(uniform parts) − Σ_{other holders} share          (⊕ for parts shared by XOR)

which the dealer computes, and which is uniform to its recipient. Everything is addressed (`crypto.prg`), so a triple
store is seeds and corrections, and its size is that of the determined parts at one party.

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
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np

from veilmeans.crypto import bits, prg, ring
from veilmeans.crypto.ring_matmul import matmul
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Array

Shape = tuple[int, ...]
Unsigned: TypeAlias = type[np.unsignedinteger[Any]]


@dataclass(frozen=True)
class CorrelationPart:
    """One array of a kind. `holders` are the parties that have a share of it.

    A part that outlives its round names in `fixed_stage` the stage under which it is expanded, in iteration 0 of the
    same run and shard.
    """

    name: str
    shape: Shape
    holders: tuple[int, ...]
    sharing: Literal["sum", "xor"] = "sum"
    dtype: Unsigned = np.uint64
    fixed_stage: str | None = None

    def reconstruct(self, shares: Sequence[Array]) -> Array:
        """Σ of the shares, or ⊕."""
        return reduce(np.bitwise_xor if self.sharing == "xor" else np.add, shares)

    def last_share(self, value: Array, shares: Sequence[Array]) -> Array:
        """Compute the last holder's share of `value` from the other holders' shares."""
        if not shares:
            return value
        others = self.reconstruct(shares)
        return value ^ others if self.sharing == "xor" else value - others


class Kind(Protocol):
    """One kind of correlation, for one shape."""

    @property
    def name(self) -> str:
        """A part of every PRG label: two kinds of one round never share randomness."""

    def uniform_parts(self) -> tuple[CorrelationPart, ...]:
        """The parts whose shares are all expanded from seeds."""

    def determined_parts(self) -> tuple[CorrelationPart, ...]:
        """The parts that are functions of the uniform ones."""

    def determine(self, values: Mapping[str, Array]) -> dict[str, Array]:
        """Compute the determined parts' values from the uniform parts' values."""


def expand_share(seed: bytes, address: Address, scope: str, kind: Kind, part: CorrelationPart) -> Array:
    """Expand one party's share of one part from its seed. A part with a fixed stage is the same in every scope."""
    label = f"{kind.name}.{part.name}"
    if part.fixed_stage is not None:
        fixed = Address(address.run, 0, part.fixed_stage, address.shard)
        return prg.uniform(seed, fixed, label, part.shape, part.dtype)
    return prg.uniform(seed, address, scope + label, part.shape, part.dtype)


def compute_corrections(
    seeds: Sequence[bytes], address: Address, scope: str, kind: Kind
) -> dict[CorrelationPart, Array]:
    """Compute the dealer's corrections at one address: each determined part's share for its last holder."""

    def shares(part: CorrelationPart, holders: Sequence[int]) -> list[Array]:
        return [expand_share(seeds[i], address, scope, kind, part) for i in holders]

    uniform = {part.name: part.reconstruct(shares(part, part.holders)) for part in kind.uniform_parts()}
    values = kind.determine(uniform)
    return {
        part: part.last_share(values[part.name], shares(part, part.holders[:-1])) for part in kind.determined_parts()
    }


def _shared(
    names: Sequence[str],
    parties: int,
    shape: Shape,
    sharing: Literal["sum", "xor"] = "sum",
    dtype: Unsigned = np.uint64,
) -> tuple[CorrelationPart, ...]:
    """Parts that all parties hold shares of."""
    return tuple(CorrelationPart(name, shape, tuple(range(parties)), sharing, dtype) for name in names)


@dataclass(frozen=True)
class Mul:
    """⟨a⟩, ⟨b⟩ uniform and ⟨c⟩ = ⟨a·b⟩, element by element."""

    parties: int
    shape: Shape
    name: str = "mul"

    def uniform_parts(self) -> tuple[CorrelationPart, ...]:
        return _shared("ab", self.parties, self.shape)

    def determined_parts(self) -> tuple[CorrelationPart, ...]:
        return _shared("c", self.parties, self.shape)

    def determine(self, values: Mapping[str, Array]) -> dict[str, Array]:
        return {"c": values["a"] * values["b"]}


@dataclass(frozen=True)
class And:
    """[a], [b0] … uniform and [c0] = [a∧b0] …: one left operand for several right ones."""

    parties: int
    shape: Shape
    dtype: Unsigned = np.uint8
    outputs: int = 1
    name: str = "and"

    def uniform_parts(self) -> tuple[CorrelationPart, ...]:
        names = ["a", *(f"b{i}" for i in range(self.outputs))]
        return _shared(names, self.parties, self.shape, "xor", self.dtype)

    def determined_parts(self) -> tuple[CorrelationPart, ...]:
        return _shared([f"c{i}" for i in range(self.outputs)], self.parties, self.shape, "xor", self.dtype)

    def determine(self, values: Mapping[str, Array]) -> dict[str, Array]:
        return {f"c{i}": values["a"] & values[f"b{i}"] for i in range(self.outputs)}


@dataclass(frozen=True)
class PairAnd:
    """a known to party 0, b known to party 1, [c] = [a∧b] between the two."""

    shape: Shape
    dtype: Unsigned
    name: str = "pairand"

    def uniform_parts(self) -> tuple[CorrelationPart, ...]:
        return tuple(CorrelationPart(name, self.shape, (i,), "xor", self.dtype) for i, name in enumerate("ab"))

    def determined_parts(self) -> tuple[CorrelationPart, ...]:
        return (CorrelationPart("c", self.shape, (0, 1), "xor", self.dtype),)

    def determine(self, values: Mapping[str, Array]) -> dict[str, Array]:
        return {"c": values["a"] & values["b"]}


@dataclass(frozen=True)
class DaBit:
    """A random bit r for each of `count` values, shared by XOR (packed) and by sum."""

    parties: int
    count: int
    name: str = "dabit"

    def uniform_parts(self) -> tuple[CorrelationPart, ...]:
        return _shared(["bit"], self.parties, (bits.padded_count(self.count) // 8,), "xor", np.uint8)

    def determined_parts(self) -> tuple[CorrelationPart, ...]:
        return _shared("r", self.parties, (self.count,))

    def determine(self, values: Mapping[str, Array]) -> dict[str, Array]:
        return {"r": bits.unpack(values["bit"], self.count).astype(ring.DTYPE)}


@dataclass(frozen=True)
class Inject(DaBit):
    """A random bit r for each of `count` values, shared both ways; ⟨a⟩ uniform, ⟨r·a⟩."""

    name: str = "inject"

    def uniform_parts(self) -> tuple[CorrelationPart, ...]:
        return (*super().uniform_parts(), *_shared("a", self.parties, (self.count,)))

    def determined_parts(self) -> tuple[CorrelationPart, ...]:
        return _shared(["r", "ra"], self.parties, (self.count,))

    def determine(self, values: Mapping[str, Array]) -> dict[str, Array]:
        r = super().determine(values)["r"]
        return {"r": r, "ra": r * values["a"]}


@dataclass(frozen=True)
class Trunc:
    """A uniform word r for each of `count` values: its bits by XOR; itself, r ≫ f and its top bit by sum."""

    parties: int
    count: int
    shift: int
    name: str = "trunc"

    def uniform_parts(self) -> tuple[CorrelationPart, ...]:
        return _shared(["bits"], self.parties, (self.count,), "xor")

    def determined_parts(self) -> tuple[CorrelationPart, ...]:
        return _shared(["r", "high", "top"], self.parties, (self.count,))

    def determine(self, values: Mapping[str, Array]) -> dict[str, Array]:
        r = values["bits"]
        return {"r": r, "high": r >> ring.DTYPE(self.shift), "top": r >> ring.DTYPE(63)}


@dataclass(frozen=True)
class Operand:
    """U alone: the mask of a matrix of `shape` that its owner sends to one peer, once per run, at `fixed_stage`."""

    owner: int
    peer: int
    shape: Shape
    fixed_stage: str

    @property
    def name(self) -> str:
        return f"matmul.{self.owner}.{self.peer}"

    def uniform_parts(self) -> tuple[CorrelationPart, ...]:
        return (CorrelationPart("u", self.shape, (self.owner,), fixed_stage=self.fixed_stage),)

    def determined_parts(self) -> tuple[CorrelationPart, ...]:
        return ()

    def determine(self, _values: Mapping[str, Array]) -> dict[str, Array]:
        return {}


@dataclass(frozen=True)
class MatMul:
    """U (rows × inner) at the owner, V (inner × columns) at the peer, ⟨UV⟩ between them.

    U masks a matrix that does not change during a run, so it is expanded under a fixed stage; V is fresh in each
    iteration, and one V is never used twice. `transposed`: U is the mask of the inner × rows matrix whose transpose is
    the left operand.
    """

    owner: int
    peer: int
    rows: int
    inner: int
    columns: int
    fixed_stage: str
    transposed: bool = False

    @property
    def name(self) -> str:
        return f"matmul.{self.owner}.{self.peer}"

    def uniform_parts(self) -> tuple[CorrelationPart, ...]:
        shape = (self.inner, self.rows) if self.transposed else (self.rows, self.inner)
        return (
            *Operand(self.owner, self.peer, shape, self.fixed_stage).uniform_parts(),
            CorrelationPart("v", (self.inner, self.columns), (self.peer,)),
        )

    def determined_parts(self) -> tuple[CorrelationPart, ...]:
        return (CorrelationPart("w", (self.rows, self.columns), (self.owner, self.peer)),)

    def determine(self, values: Mapping[str, Array]) -> dict[str, Array]:
        left = values["u"].T if self.transposed else values["u"]
        return {"w": matmul(left, values["v"])}


def find_part(kind: Kind, name: str) -> CorrelationPart:
    """Find the part called `name`."""
    return next(part for part in (*kind.uniform_parts(), *kind.determined_parts()) if part.name == name)
