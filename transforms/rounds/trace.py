"""What a protocol will send and need, from shapes alone: it is run once on zeros, for all parties in step.

This takes shapes, never data; it is what prints a protocol's table, and what tells the dealer what to make.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import numpy as np
from rich.table import Table
from scipy.sparse import csr_array

from veilmeans.crypto import ring
from veilmeans.crypto.correlations import Kind, find_part
from veilmeans.crypto.he.product_parameters import HEProductParameters
from veilmeans.crypto.he.scheme import Ciphers
from veilmeans.schemas.arrays import Array, Arrays, Spec, payload_size, spec_of
from veilmeans.schemas.party import Party
from veilmeans.transforms.rounds.interfaces import CiphertextNeed, ColumnCiphertexts, CorrelationNeed, Shape
from veilmeans.transforms.rounds.protocol import Inbox, Protocol, Stage


class NotAffineError(Exception):
    """The two values differ in something that is no whole number."""


def extrapolate(first: Any, second: Any, steps: int) -> Any:
    """The value `steps` after `first`, if `second` is one after it: number by number through tuples and dataclasses."""
    if first == second:
        return first
    if type(first) is not type(second):
        raise NotAffineError
    if type(first) is int:
        return first + steps * (second - first)
    if isinstance(first, tuple) and len(first) == len(second):
        return tuple(extrapolate(a, b, steps) for a, b in zip(first, second, strict=True))
    if is_dataclass(first) and not isinstance(first, type):
        names = [field.name for field in fields(first)]
        values = {name: extrapolate(getattr(first, name), getattr(second, name), steps) for name in names}
        return replace(first, **values)
    raise NotAffineError


@dataclass
class TracedHEOperations:
    """`Homomorphic` for a trace: zeros of the right shape, and a record of what must be made beforehand."""

    ciphertext_needs: dict[CiphertextNeed, None] = field(default_factory=dict)

    def encrypt(self, label: str, party: Party, product: HEProductParameters, values: ring.Ring) -> Ciphers:
        shape = product.encrypted_shape(len(values))
        return self._record(label, party.index, party.index, product, shape, masked=False)

    def check(self, party: Party, peer: int, y: Ciphers) -> Ciphers:
        del party, peer
        return y

    def multiply(
        self, label: str, party: Party, peer: int, product: HEProductParameters, x: csr_array
    ) -> tuple[Ciphers, ring.Ring]:
        rows = x.shape[0]
        masked = self._record(label, party.index, peer, product, product.product_shape(rows), masked=True)
        return masked, np.zeros((rows, product.columns), ring.DTYPE)

    def accumulate(
        self, party: Party, peer: int, product: HEProductParameters, x: csr_array, y: Ciphers
    ) -> ColumnCiphertexts:
        del party, peer, x, y
        return ColumnCiphertexts(np.zeros(0, np.int64), np.zeros((0, product.packs), product.cipher.dtype))

    def mask(
        self, label: str, party: Party, peer: int, product: HEProductParameters, width: int, found: ColumnCiphertexts
    ) -> tuple[Ciphers, ring.Ring]:
        del found
        masked = self._record(label, party.index, peer, product, (width, product.packs), masked=True)
        return masked, np.zeros((width, product.columns), ring.DTYPE)

    def decrypt(self, party: Party, peer: int, product: HEProductParameters, z: Ciphers, rows: int) -> ring.Ring:
        del party, peer, z
        return np.zeros((rows, product.columns), ring.DTYPE)

    def _record(
        self, label: str, maker: int, key: int, product: HEProductParameters, shape: tuple[int, int], masked: bool
    ) -> Ciphers:
        self.ciphertext_needs[CiphertextNeed(label, maker, key, shape[0] * shape[1], product, masked)] = None
        return np.zeros(shape, product.cipher.dtype)


@dataclass
class ShapeRecorder:
    """`Randomness` for a trace: zeros of the right shape, and a record of what was asked for."""

    scope: str = ""
    needs: dict[CorrelationNeed, None] = field(default_factory=dict)
    foreseen: TracedHEOperations = field(default_factory=TracedHEOperations)

    def uniform(self, label: str, shape: Shape) -> ring.Ring:
        del label
        return np.zeros(shape, ring.DTYPE)

    def correlated(self, kind: Kind, part: str) -> Array:
        self.needs[CorrelationNeed(self.scope, kind)] = None
        found = find_part(kind, part)
        return np.zeros(found.shape, found.dtype)

    def scoped(self, scope: str) -> "ShapeRecorder":
        return replace(self, scope=self.scope + scope)

    def homomorphic(self) -> TracedHEOperations:
        return self.foreseen


Shapes = Mapping[str, tuple[Shape, str] | Array]
"""Name -> (shape, dtype) of each array in a party's state, or the array itself where it is public."""
_STEPS = 16
"""Up to so many periods, rows are traced as they are."""


@dataclass(frozen=True)
class TracedMessage:
    """One message, without its values; parties by their index."""

    sender: int
    recipient: int
    arrays: Spec

    @property
    def size(self) -> int:
        """Bytes of the payload as it is sent, Arrow's framing included."""
        return payload_size(self.arrays)


@dataclass(frozen=True)
class StageTrace:
    """One round: what crosses, and what it uses up.

    `needs` is correlated randomness, `ciphertext_needs` are ciphertexts made beforehand.
    """

    name: str
    sends: str
    parties: int
    messages: tuple[TracedMessage, ...]
    needs: tuple[CorrelationNeed, ...]
    ciphertext_needs: tuple[CiphertextNeed, ...] = ()

    @property
    def sent(self) -> tuple[int, ...]:
        """Bytes of the arrays that each party sends to all its peers together."""
        found = [0] * self.parties
        for message in self.messages:
            found[message.sender] += sum(each.nbytes for each in message.arrays)
        return tuple(found)


def trace(protocol: Protocol, shapes: Sequence[Shapes]) -> list[StageTrace]:
    """Run `protocol` on zeros of these shapes, one entry of `shapes` for each party."""
    names = tuple(f"party{i}" for i in range(len(shapes)))
    parties = [Party(i, names) for i in range(len(shapes))]
    states: list[Arrays] = [_zeros(shape) for shape in shapes]
    result = []
    for stage in protocol.stages():
        states, traced = _step(stage, parties, states)
        result.append(traced)
    return result


def trace_rows(
    protocol: Protocol, shapes: Callable[[int], Sequence[Shapes]], rows: int, period: int
) -> list[StageTrace]:
    """`trace` for shapes of so many rows, from traces of a few rows where `rows` are many.

    Two of them say how it goes on, and a third that it does; if not, all rows are traced.
    """
    first = period + rows % period
    steps = (rows - first) // period
    if steps <= _STEPS:
        return trace(protocol, shapes(rows))
    found = [tuple(trace(protocol, shapes(first + i * period))) for i in range(3)]
    with suppress(NotAffineError):
        if extrapolate(found[0], found[1], 2) == found[2]:
            return list(extrapolate(found[0], found[1], steps))
    return trace(protocol, shapes(rows))


def _step(stage: Stage, parties: Sequence[Party], states: Sequence[Arrays]) -> tuple[list[Arrays], StageTrace]:
    round_, recorder = stage.round, ShapeRecorder()
    sent = [round_.send(party, state, recorder) for party, state in zip(parties, states, strict=True)]
    messages = tuple(
        TracedMessage(party.index, to, spec_of(sent[party.index].for_peer(to)))
        for party in parties
        for to in round_.recipients(party)
    )
    received = []
    for party in parties:
        inbox = Inbox(party, {i: sent[i].for_peer(party.index) for i in round_.senders(party)})
        received.append(round_.receive(party, sent[party.index].state, inbox, recorder))
    needs, ciphertexts = tuple(recorder.needs), tuple(recorder.foreseen.ciphertext_needs)
    return received, StageTrace(stage.name, round_.sends, len(parties), messages, needs, ciphertexts)


def table(protocol: Protocol, shapes: Sequence[Shapes], party: int, rows: int) -> Table:
    """Round, what is sent, bytes that one party sends: for a terminal."""
    result = Table("round", "what is sent", "bytes per row", "bytes", title=f"{protocol.name}: rounds {len(protocol)}")
    for stage in trace(protocol, shapes):
        sent = stage.sent[party]
        result.add_row(stage.name, stage.sends, f"{sent / rows:,.1f}", f"{sent:,}")
    return result


def _zeros(shapes: Shapes) -> dict[str, Array]:
    return {name: np.zeros(*what) if isinstance(what, tuple) else what for name, what in shapes.items()}
