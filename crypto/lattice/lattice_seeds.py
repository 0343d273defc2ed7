"""Seeds of the lattice products of one session.

  session seed   HMAC(own seed, nonce)                                     of one party; U, V, W_peer come from it, too
  secret seeds   PRF(session seed, address, owner · peer · orientation)    of the party that makes the message
  public seed    HMAC(nonce, owner · peer · orientation)                   of both: the masks a

The nonce is the hash of what both parties contributed. A retry has the same nonce, hence the same bytes. A peer that
starts afresh contributes anew, and every secret is another one. Without the nonce, an old r would cover a new V, and
c1 − c1' = a·(v − v'). Masks serve many secrets, so all shards of a session have the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from veilmeans.crypto import prg
from veilmeans.crypto.correlations import CorrelationPart, MatMul
from veilmeans.schemas.arrays import Array

_SHAPE = (prg.SEED_SIZE // 8,)


def session_seed(own_seed: bytes, nonce: bytes) -> bytes:
    """Derive the seed from which a party draws all that belongs to one triple store."""
    return prg.derive(own_seed, f"session {nonce.hex()}")


def public_seed(nonce: bytes, triple: MatMul) -> bytes:
    """Derive the seed of the masks of all operands that have this owner, peer and orientation."""
    return prg.derive(nonce, f"lattice masks {triple.owner} {triple.peer} {triple.transposed:d}")


@dataclass(frozen=True)
class _SeedKind:
    """A kind of correlation with one uniform part: a seed of one party."""

    triple: MatMul

    def determined_parts(self) -> tuple[CorrelationPart, ...]:
        return ()

    def determine(self, _values: Mapping[str, Array]) -> dict[str, Array]:
        return {}


@dataclass(frozen=True)
class OperandSeed(_SeedKind):
    """The owner's seed of s and e: one for U and its orientation, as U itself is expanded."""

    @property
    def name(self) -> str:
        return f"lattice.{self.triple.owner}.{self.triple.peer}.operand.{self.triple.transposed:d}"

    def uniform_parts(self) -> tuple[CorrelationPart, ...]:
        return (CorrelationPart("seed", _SHAPE, (self.triple.owner,), fixed_stage=self.triple.fixed_stage),)


@dataclass(frozen=True)
class ResponseSeed(_SeedKind):
    """The peer's seed of r, e' and the flood: one for each V, as V itself is expanded."""

    @property
    def name(self) -> str:
        return f"lattice.{self.triple.owner}.{self.triple.peer}.response"

    def uniform_parts(self) -> tuple[CorrelationPart, ...]:
        return (CorrelationPart("seed", _SHAPE, (self.triple.peer,)),)
