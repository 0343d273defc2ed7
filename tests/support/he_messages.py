"""Messages of K-means runs with the `he` engine: recorded, repeated as by a retry, or forged on their way.

All parties run in step, in memory.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from support.kmeans_in_memory import SMALL, Table, kmeans_for, run_kmeans
from veilmeans.crypto.he.product_parameters import SchemeParameters
from veilmeans.schemas.arrays import Array, Arrays
from veilmeans.schemas.kmeans_config import CipherConfig
from veilmeans.schemas.layout import Layout
from veilmeans.transforms.kmeans.steps import KMeansSteps
from veilmeans.transforms.rounds.protocol import Inbox, Sent, Stage

ENCRYPT, DISTANCE, UPDATE, UNMASK = "encrypt.00.encrypt", "distance.00.cross", "update.00.cross", "unmask.00.unmask"
CIPHERTEXT_STAGES = {ENCRYPT: "y", DISTANCE: "z", UPDATE: "y", UNMASK: "z"}
"""The stages that send ciphertexts, and the name of the array in their messages."""


@dataclass(frozen=True)
class Message:
    """One array of a message, with its address, sender and recipient."""

    iteration: int
    stage: str
    shard: int
    sender: int
    recipient: int
    name: str
    array: Array

    @property
    def key(self) -> tuple[Any, ...]:
        """The address, the sender, the recipient and the name of the array."""
        return self.iteration, self.stage, self.shard, self.sender, self.recipient, self.name

    @property
    def metadata(self) -> tuple[Any, ...]:
        """All that can be seen of the array except its content."""
        return *self.key, self.array.shape, str(self.array.dtype)

    @property
    def has_ciphertexts(self) -> bool:
        return self.array.dtype.kind == "V"

    @property
    def residues(self) -> list[bytes]:
        """The ciphertexts, one by one."""
        data, size = self.array.tobytes(), self.array.dtype.itemsize
        return [data[start : start + size] for start in range(0, len(data), size)]


Forge = Callable[[Message], Array | None]
"""The array that the recipient gets instead of the one that was sent; None: none."""


@dataclass
class MessageRecorder:
    """Everything that the parties of a run send, and what they send when each send is repeated."""

    forge: Forge = lambda message: message.array
    sent: list[Message] = field(default_factory=list)
    repeated: list[Message] = field(default_factory=list)

    def ciphertexts(self, stage: str | None = None) -> list[Message]:
        """The messages with ciphertexts, of all stages or of one."""
        return [message for message in self.sent if message.has_ciphertexts and stage in (None, message.stage)]

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record the rounds of all parties that run in step in this context."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Table, "_play", lambda table, *arguments: self._run_round(table, *arguments))
            yield

    def _run_round(self, table: Table, stage: Stage, shard: int, states: Sequence[Arrays]) -> list[Arrays]:
        """Run one round, each send twice, as a bundle that is retried would."""
        sent, repeated = (
            [
                stage.round.send(context.party, state, context.randomness(stage, shard))
                for context, state in zip(table.contexts, states, strict=True)
            ]
            for _ in range(2)
        )
        received = []
        for context in table.contexts:
            inbox: dict[int, dict[str, Array]] = {}
            for sender in stage.round.senders(context.party):
                key = (context.iteration, stage.name, shard, sender, context.party.index)
                self.repeated += _messages(key, repeated[sender])
                messages = _messages(key, sent[sender])
                self.sent += messages
                delivered = {message.name: self.forge(message) for message in messages}
                inbox[sender] = {name: array for name, array in delivered.items() if array is not None}
            state, randomness = sent[context.party.index].state, context.randomness(stage, shard)
            received.append(stage.round.receive(context.party, state, Inbox(context.party, inbox), randomness))
        return received


def _messages(key: tuple[int, str, int, int, int], sent: Sent) -> list[Message]:
    return [Message(*key, name, array) for name, array in sent.for_peer(key[-1]).items()]


def he_job(
    layout: Layout, k: int = 3, cipher: SchemeParameters = SMALL, columns_per_shard: int = 4, **fields: Any
) -> KMeansSteps:
    """Make a job whose products are all computed by `he`; it ends with its last iteration."""
    config = CipherConfig.model_construct(scheme=cipher.scheme, bits=cipher.bits)
    kmeans = kmeans_for(
        layout, k, inertia=False, products="he", cipher=config, max_iter=2, tol=0, final_assignment=False, **fields
    )
    return replace(kmeans, columns_per_shard=columns_per_shard)


def record_run(
    kmeans: KMeansSteps, zeros: float = 0.5, iterations: int = 1, forge: Forge | None = None
) -> MessageRecorder:
    """Run a job over random rows with this share of zeros, and record its messages."""
    shape = kmeans.layout.total_rows, kmeans.layout.total_features
    rng = np.random.default_rng(1)
    rows = rng.random(shape) * (rng.random(shape) >= zeros)
    recorder = MessageRecorder(forge) if forge else MessageRecorder()
    with recorder.recording():
        run_kmeans(kmeans, rows, rng.random((kmeans.k, shape[1])), iterations)
    return recorder
