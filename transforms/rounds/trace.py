"""Trace a protocol: its messages and needs, from one run on zeros for all parties in step.

It takes shapes, never data. Plans, cost tables and the dealer's work come from traces.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from veilmeans.crypto import ring
from veilmeans.crypto.correlations import Kind, find_part
from veilmeans.crypto.he.product_parameters import HEProductParameters
from veilmeans.crypto.he.scheme import Ciphertexts
from veilmeans.schemas.arrays import Array, Arrays, Spec, payload_size, spec_of
from veilmeans.schemas.party import Party
from veilmeans.transforms.rounds.interfaces import CiphertextNeed, ColumnCiphertexts, CorrelationNeed, Shape, Shapes
from veilmeans.transforms.rounds.protocol import Inbox, Protocol, Stage

if TYPE_CHECKING:
    from scipy.sparse import csr_array


class NotAffineError(Exception):
    """The two values differ in something that is no integer."""


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
        pairs = {each.name: (getattr(first, each.name), getattr(second, each.name)) for each in fields(first)}
        return replace(first, **{name: extrapolate(*pair, steps) for name, pair in pairs.items()})
    raise NotAffineError


@dataclass
class TracedHEOperations:
    """`HomomorphicOperations` for a trace: zeros of the right shape, and a record of what must be made beforehand."""

    ciphertext_needs: dict[CiphertextNeed, None] = field(default_factory=dict)

    def encrypt(self, label: str, party: Party, product: HEProductParameters, values: ring.Ring) -> Ciphertexts:
        shape = product.encrypted_shape(len(values))
        return self._record(label, party.index, party.index, product, shape, masked=False)

    def check(self, _party: Party, _peer: int, y: Ciphertexts) -> Ciphertexts:
        return y

    def multiply(
        self, label: str, party: Party, peer: int, product: HEProductParameters, x: "csr_array"
    ) -> tuple[Ciphertexts, ring.Ring]:
        rows = x.shape[0]
        masked = self._record(label, party.index, peer, product, product.product_shape(rows), masked=True)
        return masked, np.zeros((rows, product.columns), ring.DTYPE)

    def accumulate(
        self, _party: Party, _peer: int, product: HEProductParameters, _x: "csr_array", _y: Ciphertexts
    ) -> ColumnCiphertexts:
        return ColumnCiphertexts(np.zeros(0, np.int64), np.zeros((0, product.packs), product.cipher.dtype))

    def mask(
        self, label: str, party: Party, peer: int, product: HEProductParameters, width: int, _found: ColumnCiphertexts
    ) -> tuple[Ciphertexts, ring.Ring]:
        masked = self._record(label, party.index, peer, product, (width, product.packs), masked=True)
        return masked, np.zeros((width, product.columns), ring.DTYPE)

    def decrypt(self, _party: Party, _peer: int, product: HEProductParameters, _z: Ciphertexts, rows: int) -> ring.Ring:
        return np.zeros((rows, product.columns), ring.DTYPE)

    def _record(
        self, label: str, maker: int, key: int, product: HEProductParameters, shape: tuple[int, int], masked: bool
    ) -> Ciphertexts:
        self.ciphertext_needs[CiphertextNeed(label, maker, key, shape[0] * shape[1], product, masked)] = None
        return np.zeros(shape, product.cipher.dtype)


@dataclass
class ShapeRecorder:
    """`Randomness` for a trace: zeros of the right shape, and a record of what was asked for."""

    scope: str = ""
    needs: dict[CorrelationNeed, None] = field(default_factory=dict)
    he_operations: TracedHEOperations = field(default_factory=TracedHEOperations)

    def uniform(self, _label: str, shape: Shape) -> ring.Ring:
        return np.zeros(shape, ring.DTYPE)

    def correlated(self, kind: Kind, part: str) -> Array:
        self.needs[CorrelationNeed(self.scope, kind)] = None
        found = find_part(kind, part)
        return np.zeros(found.shape, found.dtype)

    def scoped(self, scope: str) -> "ShapeRecorder":
        return replace(self, scope=self.scope + scope)

    def at(self, _iteration: int, _stage: str) -> "ShapeRecorder":
        """A recorder of its own: what another stage will use up is not a need of this one."""
        return ShapeRecorder()

    def he(self) -> TracedHEOperations:
        return self.he_operations


_MOST_PERIODS = 16  # up to so many periods, rows are traced as they are


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
    return trace_states(protocol, [zeros(shape) for shape in shapes])[1]


def trace_states(protocol: Protocol, states: Sequence[Arrays]) -> tuple[list[Arrays], list[StageTrace]]:
    """Run `protocol` on the states of all parties in step; return their states after it, and its stages."""
    parties = all_parties(len(states))
    after, stages = list(states), []
    for stage in protocol.stages():
        after, traced = _trace_stage(stage, parties, after)
        stages.append(traced)
    return after, stages


def all_parties(count: int) -> list[Party]:
    """Parties that stand for those of any run."""
    names = tuple(f"party{i}" for i in range(count))
    return [Party(i, names) for i in range(count)]


T = TypeVar("T", bound=tuple[Any, ...])


def trace_rows(trace_of: Callable[[int], T], rows: int, period: int) -> T:
    """A trace over `rows` rows; where they are many, extrapolated from traces of a few rows.

    `trace_of` traces a number of rows. Every value in a trace must be affine in the rows, for rows that leave the same
    remainder when divided by `period`: two traces determine it, and a third checks it. If the check fails, all rows are
    traced.
    """
    first = period + rows % period
    steps = (rows - first) // period
    if steps <= _MOST_PERIODS:
        return trace_of(rows)
    few = [trace_of(first + i * period) for i in range(3)]
    with suppress(NotAffineError):
        if extrapolate(few[0], few[1], 2) == few[2]:
            many: T = extrapolate(few[0], few[1], steps)
            return many
    return trace_of(rows)


def _trace_stage(stage: Stage, parties: Sequence[Party], states: Sequence[Arrays]) -> tuple[list[Arrays], StageTrace]:
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
    needs, ciphertexts = tuple(recorder.needs), tuple(recorder.he_operations.ciphertext_needs)
    return received, StageTrace(stage.name, round_.sends, len(parties), messages, needs, ciphertexts)


def zeros(shapes: Shapes) -> dict[str, Array]:
    """Zeros of these shapes; what is given as an array stays."""
    return {name: np.zeros(*what) if isinstance(what, tuple) else what for name, what in shapes.items()}
