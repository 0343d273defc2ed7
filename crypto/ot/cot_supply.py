"""COTs of one direction at one address, as many as it needs, by silent rounds or by IKNP batches.

A silent supply begins with base COTs of its own. If one round is not enough, the first COTs of a round are the base of
the next: those are never given out. Every round's message needs only the sender's own blocks, so all go in one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from veilmeans.crypto.ot import iknp, silent_ot
from veilmeans.crypto.ot.blocks import Blocks
from veilmeans.crypto.ot.ot_session import OtSession
from veilmeans.crypto.ot.silent_ot import LpnParameters
from veilmeans.schemas.arrays import Array

IKNP_BATCH = 1 << 18
"""COTs of one IKNP batch at most."""


def silent_rounds(parameters: LpnParameters, count: int) -> list[int]:
    """COTs that each silent round makes, so that `count` are left when the next rounds have their base."""
    rounds = []
    while count > parameters.output:
        rounds.append(parameters.output)
        count -= parameters.output - parameters.base
    return [*rounds, count] if count else rounds


def iknp_batches(count: int) -> list[int]:
    """COTs of each IKNP batch."""
    return [min(IKNP_BATCH, count - start) for start in range(0, count, IKNP_BATCH)]


@dataclass
class Supply:
    """COTs from batches, computed when they are asked for."""

    batches: Iterator[Blocks]
    _left: Blocks = field(default_factory=lambda: np.empty((0, 2), np.uint64), repr=False)

    def take(self, count: int) -> Blocks:
        """The next `count` COTs; ValueError if fewer were planned."""
        parts = []
        while count:
            if not len(self._left):
                batch = next(self.batches, None)
                if batch is None:
                    raise ValueError("more COTs are asked for than were planned")
                self._left = batch
            parts.append(self._left[:count])
            self._left = self._left[count:]
            count -= len(parts[-1])
        return parts[0] if len(parts) == 1 else np.concatenate([np.empty((0, 2), np.uint64), *parts])


@dataclass
class SilentSender:
    """The sender's side: the supply, and the messages of the rounds that it has computed."""

    parameters: LpnParameters
    session: OtSession
    delta: Blocks = field(repr=False)
    base: Blocks = field(repr=False)
    count: int
    messages: list[Blocks] = field(default_factory=list, repr=False)

    def supply(self) -> Supply:
        return Supply(self._rounds())

    def _rounds(self) -> Iterator[Blocks]:
        base = self.base
        plan = silent_rounds(self.parameters, self.count)
        for number, size in enumerate(plan):
            cots, message = silent_ot.extend_sender(
                self.parameters, self.session, f"round {number}", self.delta, base, size
            )
            self.messages.append(message)
            base, cots = _set_aside(self.parameters, cots, number + 1 < len(plan))
            yield cots


def silent_receiver(
    parameters: LpnParameters, session: OtSession, base: Blocks, messages: Sequence[Blocks], count: int
) -> Supply:
    """The receiver's supply, from the messages of all rounds."""

    def rounds(base: Blocks) -> Iterator[Blocks]:
        for number, (size, message) in enumerate(zip(silent_rounds(parameters, count), messages, strict=True)):
            cots = silent_ot.extend_receiver(parameters, session, f"round {number}", base, message, size)
            base, cots = _set_aside(parameters, cots, number + 1 < len(messages))
            yield cots

    return Supply(rounds(base))


def _set_aside(parameters: LpnParameters, cots: Blocks, more: bool) -> tuple[Blocks, Blocks]:
    """The next round's base, if there is one, and the COTs to give out."""
    cut = parameters.base if more else 0
    return cots[:cut].copy(), cots[cut:]


@dataclass
class IknpReceiver:
    """The receiver's side: the supply, and the messages of the batches that it has computed."""

    session: OtSession
    keys: Sequence[tuple[bytes, bytes]] = field(repr=False)
    count: int
    messages: list[Array] = field(default_factory=list, repr=False)

    def supply(self) -> Supply:
        return Supply(self._batches())

    def _batches(self) -> Iterator[Blocks]:
        for number, size in enumerate(iknp_batches(self.count)):
            cots, message = iknp.extend_receiver(self.session, f"batch {number}", self.keys, size)
            self.messages.append(message)
            yield cots


def iknp_sender(
    session: OtSession, keys: Sequence[bytes], delta: Blocks, messages: Sequence[Array], count: int
) -> Supply:
    """The sender's supply, from the messages of all batches."""

    def batches() -> Iterator[Blocks]:
        for number, (size, message) in enumerate(zip(iknp_batches(count), messages, strict=True)):
            yield iknp.extend_sender(session, f"batch {number}", keys, delta, message, size)

    return Supply(batches())
