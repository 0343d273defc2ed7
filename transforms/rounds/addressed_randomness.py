"""The randomness of one round of one shard: this party's own masks, and its shares of correlated randomness.

Everything is a function of (seed, run, iteration, stage, shard, label); see `crypto.prg` and `crypto.correlations`.
Within one call of a round a label stands for one array: asking for another one under it would put one mask on two
values, and is refused.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import cast

from veilmeans.crypto import prg, ring
from veilmeans.crypto.correlations import CorrelationPart, Kind, expand_share, find_part, made_by_ot
from veilmeans.crypto.he.scheme import Ciphertexts
from veilmeans.io.storage.triple_store import StoreRun
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Array, nbytes
from veilmeans.transforms.rounds.he_operations import HEContext, HEOperations
from veilmeans.transforms.rounds.interfaces import CorrelationNeed, Shape


@dataclass
class AddressedRandomness:
    """`Randomness` at one address, from a party's own seed and its triple store. One object for one call of a round."""

    party: int
    seed: bytes = field(repr=False)
    triples: StoreRun | None
    address: Address
    scope: str = ""
    he_context: HEContext | None = None
    _claimed: dict[str, object] = field(default_factory=dict, repr=False)
    _expanded: dict[str, Array] = field(default_factory=dict, repr=False)

    def uniform(self, label: str, shape: Shape) -> ring.Ring:
        label = self.scope + label
        if label in self._claimed:
            raise ValueError(f"the randomness {label!r} of {self.address} is asked for twice in one round")
        self._claimed[label] = shape
        return prg.uniform(self.seed, self.address, label, shape)

    def correlated(self, kind: Kind, part: str) -> Array:
        need = CorrelationNeed(self.scope, kind)
        if self._claimed.setdefault(self.scope + kind.name, kind) != kind:
            raise ValueError(f"two kinds {kind.name!r} are asked for at {self.address} in one round")
        label = need.label(part)
        if label not in self._expanded:
            self._expanded[label] = self._share_of(need, _find_part(cast(Hashable, kind), part))
        return self._expanded[label]

    def scoped(self, scope: str) -> "AddressedRandomness":
        return replace(self, scope=self.scope + scope)

    def at(self, iteration: int, stage: str) -> "AddressedRandomness":
        address = replace(self.address, iteration=iteration, stage=stage)
        return AddressedRandomness(self.party, self.seed, self.triples, address, he_context=self.he_context)

    def he(self) -> HEOperations:
        if self.triples is None or self.he_context is None:
            raise ValueError(f"stage {self.address.stage} needs ciphertexts, and no keys were given")
        keyring = self.he_context.keyring.for_number(self.triples.number)
        tables, processes = self.he_context.tables, self.he_context.processes
        store_address = self.triples.at(self.address)
        take = self._take_ciphertexts
        return HEOperations(keyring, tables, self.address.iteration, store_address, take, processes)

    def _take_ciphertexts(self, label: str) -> Ciphertexts:
        """Read the ciphertexts that the store has under a label; once, because they cover one message."""
        if self.triples is None or label in self._claimed:
            raise ValueError(f"the ciphertexts {label!r} of {self.address} are asked for twice in one round")
        self._claimed[label] = "ciphertexts"
        return self.triples.ciphertexts(self.address, label)

    def _share_of(self, need: CorrelationNeed, part: CorrelationPart) -> Array:
        """Read this party's share from the store if it is a correction or made by OTs, or expand it."""
        if self.triples is None:
            raise ValueError(f"stage {self.address.stage} needs correlated randomness, and no store was given")
        if self.party not in part.holders:
            raise ValueError(f"party {self.party} holds no share of {need.label(part.name)}")
        corrected = part.holders[-1] == self.party and part in _determined_parts(cast(Hashable, need.kind))
        if corrected or (self.triples.made_by_ot and made_by_ot(need.kind)):
            return self.triples.correction(self.address, need.label(part.name))
        return expand_share(self.triples.seed, self._store_address, need.scope, need.kind, part)

    @cached_property
    def _store_address(self) -> Address:
        if self.triples is None:
            raise ValueError(f"stage {self.address.stage} needs correlated randomness, and no store was given")
        return self.triples.at(self.address)

    def small_expansions(self, limit: int) -> dict[str, Array]:
        """The shares that were expanded here, if they have at most `limit` bytes in all; to be kept for the receive."""
        return self._expanded if nbytes(self._expanded) <= limit else {}


@lru_cache(maxsize=4096)
def _find_part(kind: Hashable, part: str) -> CorrelationPart:
    return find_part(cast(Kind, kind), part)


@lru_cache(maxsize=4096)
def _determined_parts(kind: Hashable) -> tuple[CorrelationPart, ...]:
    return tuple(cast(Kind, kind).determined_parts())
