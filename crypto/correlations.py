"""Kinds of correlated randomness, made from one seed per party and a few corrections.

A kind has parts. The holders of a uniform part expand their shares of it, each from its own seed. A determined part is
a function of the uniform ones: all its holders but the last expand a share, and the last one's share is a correction,

  correction = value(uniform parts) − Σ_{other holders} share          (⊕ for parts shared by XOR)

which the dealer computes, and which is uniform to its recipient. Everything is addressed (`crypto.prg`), so a triple
store is seeds and corrections, and its size is that of the determined parts at one party.

  Mul       ⟨a⟩ ⟨b⟩ ⟨a·b⟩                        products of two shared arrays
  BitProducts  [λ] and XORs of products of them  masks of opened bits, and their products, on planes
  Inject    [r] ⟨r⟩ ⟨a⟩ ⟨r·a⟩                     a shared bit times a shared value
  DaBit     [r] ⟨r⟩                              a bit shared both ways
  Trunc     ⟨r⟩ ⟨r ≫ f⟩ ⟨r_63⟩                    truncation without wrap-around
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


Factor = tuple[int, ...]
"""Mask bits of a group by their numbers; the factor is the XOR of them."""
Product = tuple[Factor, ...]
Sum = tuple[Product, ...]
"""Products by XOR."""


@dataclass(frozen=True)
class ProductGroups:
    """`count` groups of bits alike: a group has `masks` mask bits, and determined bit i is the XOR in sums[i].

    In planes, a group's rows follow each other: row g·masks + j is mask bit j of group g.
    """

    count: int
    masks: int
    sums: tuple[Sum, ...]

    def determine(self, masks: Array) -> Array:
        """Compute the determined planes, count·len(sums) × W, from the mask planes, count × masks × W."""
        known: dict[Product, Array] = {}

        def product(factors: Product) -> Array:
            if factors not in known:
                last = reduce(np.bitwise_xor, (masks[:, i] for i in factors[-1]))
                known[factors] = product(factors[:-1]) & last if len(factors) > 1 else last
            return known[factors]

        values = np.empty((self.count, len(self.sums), masks.shape[2]), masks.dtype)
        for i, products in enumerate(self.sums):
            values[:, i] = reduce(np.bitwise_xor, map(product, products))
        return values.reshape(-1, masks.shape[2])


@dataclass(frozen=True)
class BitProducts:
    """Mask bits [λ], and [⊕ Π λ]: the sums of products that `groups` describe, in planes of `words` words.

    Uniform: the mask bits, shared by XOR among all parties; or, if `known`, the first half of each group's mask bits
    known to party 0 and the second half to party 1, of two, nobody else having a share. Determined: the sums, shared by
    XOR. A factor is the XOR of mask bits, so it is shared by XOR without work; of a known mask bit the other party's
    share is 0.
    """

    parties: int
    words: int
    groups: tuple[ProductGroups, ...]
    known: bool = False
    name: str = "bits"

    @property
    def mask_rows(self) -> int:
        """Planes of mask bits that a party has a share of."""
        return sum(each.count * each.masks for each in self.groups) // (2 if self.known else 1)

    def mask_of(self, party: int) -> str:
        """The name of the part with the party's shares of mask bits."""
        return f"mask{party}" if self.known else "mask"

    def uniform_parts(self) -> tuple[CorrelationPart, ...]:
        shape = (self.mask_rows, self.words)
        if self.known:
            return tuple(CorrelationPart(self.mask_of(i), shape, (i,), "xor") for i in range(2))
        return _shared(["mask"], self.parties, shape, "xor")

    def determined_parts(self) -> tuple[CorrelationPart, ...]:
        rows = sum(each.count * len(each.sums) for each in self.groups)
        return _shared(["sums"], self.parties, (rows, self.words), "xor")

    def determine(self, values: Mapping[str, Array]) -> dict[str, Array]:
        masks = [values[part.name] for part in self.uniform_parts()]
        sums, start = [], 0
        for each in self.groups:
            rows = each.count * each.masks // len(masks)
            by_group = [mask[start : start + rows].reshape(each.count, -1, self.words) for mask in masks]
            sums.append(each.determine(np.concatenate(by_group, axis=1)))
            start += rows
        return {"sums": np.concatenate(sums)}


@dataclass(frozen=True)
class DaBit:
    """A random bit r for each of `count` values, shared by XOR (packed) and by sum."""

    parties: int
    count: int
    name: str = "dabit"

    def uniform_parts(self) -> tuple[CorrelationPart, ...]:
        return _shared(["bit"], self.parties, (bits.word_count(self.count),), "xor")

    def determined_parts(self) -> tuple[CorrelationPart, ...]:
        return _shared("r", self.parties, (self.count,))

    def determine(self, values: Mapping[str, Array]) -> dict[str, Array]:
        return {"r": bits.unpack(values["bit"], self.count).astype(ring.DTYPE)}


@dataclass(frozen=True)
class Inject:
    """A random bit r for each of `count` products, shared by XOR (packed) and by sum; ⟨a⟩ uniform, ⟨r·a⟩; in `dtype`.

    Each a has `times` bits: bit i goes with a of i mod (count / times).
    """

    parties: int
    count: int
    dtype: Unsigned = np.uint64
    name: str = "inject"
    times: int = 1

    def uniform_parts(self) -> tuple[CorrelationPart, ...]:
        bit = DaBit(self.parties, self.count).uniform_parts()
        return (*bit, *_shared("a", self.parties, (self.count // self.times,), "sum", self.dtype))

    def determined_parts(self) -> tuple[CorrelationPart, ...]:
        return _shared(["r", "ra"], self.parties, (self.count,), "sum", self.dtype)

    def determine(self, values: Mapping[str, Array]) -> dict[str, Array]:
        r = bits.unpack(values["bit"], self.count).astype(self.dtype)
        return {"r": r, "ra": r * np.tile(values["a"], self.times)}


@dataclass(frozen=True)
class Trunc:
    """A uniform word r for each of `count` values; r ≫ f and its top bit r_63. All three are shared by sum.

    No party knows r or any bit of it: each has a share of each part, and sees r only as the mask of what is opened.
    """

    parties: int
    count: int
    shift: int
    name: str = "trunc"

    def uniform_parts(self) -> tuple[CorrelationPart, ...]:
        return _shared("r", self.parties, (self.count,))

    def determined_parts(self) -> tuple[CorrelationPart, ...]:
        return _shared(["high", "top"], self.parties, (self.count,))

    def determine(self, values: Mapping[str, Array]) -> dict[str, Array]:
        r = values["r"]
        return {"high": r >> ring.DTYPE(self.shift), "top": r >> ring.DTYPE(63)}


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
    iteration, and one V is never used twice. The peer expands its share of UV; the owner's is a correction, which a
    dealer deals or the owner opens itself (`crypto.lattice`). `transposed`: U is the mask of the inner × rows matrix
    whose transpose is the left operand.
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
        return (CorrelationPart("w", (self.rows, self.columns), (self.peer, self.owner)),)

    def determine(self, values: Mapping[str, Array]) -> dict[str, Array]:
        left = values["u"].T if self.transposed else values["u"]
        return {"w": matmul(left, values["v"])}


def find_part(kind: Kind, name: str) -> CorrelationPart:
    """Find the part called `name`."""
    return next(part for part in (*kind.uniform_parts(), *kind.determined_parts()) if part.name == name)


def made_by_ot(kind: Kind) -> bool:
    """True for kinds of bits and ring elements, which oblivious transfer makes; matrix products are made otherwise."""
    return isinstance(kind, BitProducts | DaBit | Inject | Mul | Trunc)
