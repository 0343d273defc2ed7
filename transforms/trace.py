"""What a protocol will send and need, from shapes alone: it is run once on zeros, for all parties in step.

This takes shapes, never data; it is what prints a protocol's table, and what tells the dealer what to make.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from rich.table import Table

from veilmeans.schemas.arrays import Array, Arrays, nbytes
from veilmeans.schemas.party import Party
from veilmeans.transforms.homomorphic import Blinding
from veilmeans.transforms.randomness import Need, Shape, ShapeRecorder
from veilmeans.transforms.rounds import Inbox, Protocol, Stage

Shapes = Mapping[str, tuple[Shape, str] | Array]
"""Name -> (shape, dtype) of each array in a party's state, or the array itself where it is public."""


@dataclass(frozen=True)
class StageTrace:
    """One round: what crosses, bytes sent by each party to all its peers together, what it uses up.

    `needs` is correlated randomness, `blindings` are ciphertexts made beforehand.
    """

    name: str
    sends: str
    sent: tuple[int, ...]
    needs: tuple[Need, ...]
    blindings: tuple[Blinding, ...] = ()


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


def _step(stage: Stage, parties: Sequence[Party], states: Sequence[Arrays]) -> tuple[list[Arrays], StageTrace]:
    round_, recorder = stage.round, ShapeRecorder()
    sent = [round_.send(party, state, recorder) for party, state in zip(parties, states, strict=True)]
    bytes_sent = tuple(sum(nbytes(sent[p.index].for_peer(to)) for to in round_.recipients(p)) for p in parties)
    received = []
    for party in parties:
        inbox = Inbox(party, {i: sent[i].for_peer(party.index) for i in round_.senders(party)})
        received.append(round_.receive(party, sent[party.index].state, inbox, recorder))
    blindings = tuple(recorder.foreseen.blindings)
    return received, StageTrace(stage.name, round_.sends, bytes_sent, tuple(recorder.needs), blindings)


def table(protocol: Protocol, shapes: Sequence[Shapes], party: int, rows: int) -> Table:
    """Round, what is sent, bytes that one party sends: for a terminal."""
    result = Table("round", "what is sent", "bytes per row", "bytes", title=f"{protocol.name}: rounds {len(protocol)}")
    for stage in trace(protocol, shapes):
        sent = stage.sent[party]
        result.add_row(stage.name, stage.sends, f"{sent / rows:,.1f}", f"{sent:,}")
    return result


def _zeros(shapes: Shapes) -> dict[str, Array]:
    return {name: np.zeros(*what) if isinstance(what, tuple) else what for name, what in shapes.items()}
