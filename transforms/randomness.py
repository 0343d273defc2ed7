"""The randomness of one round of one shard: this party's own masks, and its shares of correlated randomness.

Everything is a function of (seed, run, iteration, stage, shard, label); see `crypto.prg`. Within one call of a round a
label may be used once: a second use would put one mask on two values, and is refused.
"""

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from veilmeans.crypto import prg, ring
from veilmeans.io.triples import TripleStore
from veilmeans.schemas.address import Address

Shape = tuple[int, ...]


class MulTriples(NamedTuple):
    """Shares of uniform a, b and of c = a·b, element by element."""

    a: ring.Ring
    b: ring.Ring
    c: ring.Ring


class Randomness(Protocol):
    """What a round may ask for."""

    def uniform(self, label: str, shape: Shape) -> ring.Ring:
        """Uniform values that only this party knows."""

    def mul(self, shape: Shape) -> MulTriples:
        """This party's shares of multiplication triples."""


def mul_shares(seed: bytes, address: Address, shape: Shape) -> MulTriples:
    """The triples that a dealer's seed expands to; for the last party c is replaced by a correction."""
    return MulTriples(*(prg.uniform(seed, address, f"mul.{part}", shape) for part in "abc"))


@dataclass
class AddressedRandomness:
    """`Randomness` at one address, from a party's own seed and its triple store."""

    seed: bytes
    triples: TripleStore | None
    address: Address
    _used: set[str] = field(default_factory=set)

    def uniform(self, label: str, shape: Shape) -> ring.Ring:
        self._claim(label)
        return prg.uniform(self.seed, self.address, label, shape)

    def mul(self, shape: Shape) -> MulTriples:
        self._claim("mul")
        if self.triples is None:
            raise ValueError(f"stage {self.address.stage} needs multiplication triples and no store was given")
        shares = mul_shares(self.triples.seed, self.address, shape)
        return shares._replace(c=self.triples.correction(self.address, "mul.c")) if self.triples.corrected else shares

    def _claim(self, label: str) -> None:
        if label in self._used:
            raise ValueError(f"the randomness {label!r} of {self.address} is asked for twice in one round")
        self._used.add(label)


@dataclass
class ShapeRecorder:
    """`Randomness` for a trace: zeros of the right shape, and a record of what was asked for."""

    mul_shapes: list[Shape] = field(default_factory=list)

    def uniform(self, label: str, shape: Shape) -> ring.Ring:
        del label
        return np.zeros(shape, ring.DTYPE)

    def mul(self, shape: Shape) -> MulTriples:
        self.mul_shapes.append(shape)
        zeros = np.zeros(shape, ring.DTYPE)
        return MulTriples(zeros, zeros, zeros)
