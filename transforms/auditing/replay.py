"""Replay a party's side of a run from its own files and its transcript, message by message.

The peers' messages come from the transcript, if they were kept; what this party would send is compared with what the
transcript says that it sent. Files that the replay writes go to a folder of their own, in which the run's files are
links, and are compared with those of the run.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from veilmeans.io.exchange.exchange import Outgoing
from veilmeans.io.messages.transcript import KeptMessages, Line, Transcript
from veilmeans.io.storage.checkpoints import Checkpoints
from veilmeans.schemas.arrays import Arrays
from veilmeans.schemas.errors import RefusedError, StorageError
from veilmeans.schemas.message import MessageKey
from veilmeans.schemas.run_folder import RunFolder
from veilmeans.transforms.kmeans.party_state import PartyJob
from veilmeans.transforms.rounds.executor import BareExecutor, Cut, Lane, Load, Over, Step

Shards = dict[int, Arrays]


@dataclass
class ReplayExchange:
    """An exchange that sends nothing: what is put is compared, what is asked for comes from the kept messages.

    `wrong`: the messages that are not what the protocol makes of this party's files. `made`: all that were compared.
    """

    transcript: Transcript
    wrong: list[str] = field(default_factory=list)
    made: set[MessageKey] = field(default_factory=set)
    read: set[MessageKey] = field(default_factory=set)
    _lines: dict[int, dict[MessageKey, Line]] = field(default_factory=dict, repr=False)
    _kept: dict[int, KeptMessages] = field(default_factory=dict, repr=False)

    def put_all(self, messages: Sequence[Outgoing]) -> None:
        for message in messages:
            line = self.lines(message.key.address.iteration).get(message.key)
            self.made.add(message.key)
            if line is None:
                self.wrong.append(f"{message.key} was not sent, and the protocol sends it")
            elif (line.size, line.digest) != (message.header.size, message.header.digest.hex()):
                self.wrong.append(f"{message.key} is not what the protocol makes of the committed inputs")

    def flush(self) -> None:
        """Do nothing: nothing is sent."""

    def get(self, key: MessageKey, timeout: float) -> pa.Buffer:
        del timeout
        iteration = key.address.iteration
        line = self.lines(iteration).get(key)
        if line is None:
            raise RefusedError(f"{key} is not in the transcript, and the protocol waits for it")
        if iteration not in self._kept:
            self._kept[iteration] = self.transcript.kept_messages(iteration)
        payload = self._kept[iteration].find(key)
        if payload is None:
            raise StorageError(f"message {key} was not kept: a run is replayed only where audit.keep was set for it")
        if Outgoing(key, payload).header.digest.hex() != line.digest:
            raise RefusedError(f"the kept message {key} is not the one in the transcript")
        self.read.add(key)
        return payload

    def drop_messages(self, run: str, before: int | None = None) -> int:
        raise ValueError(f"a replay drops no messages ({run}, {before})")

    def forget_refusal(self, run: str) -> None:
        """Do nothing: nothing is refused here."""

    def close(self) -> None:
        """Do nothing: there are no connections."""

    def lines(self, iteration: int) -> Mapping[MessageKey, Line]:
        """The lines of an iteration, by the messages' keys."""
        if iteration not in self._lines:
            lines = self.transcript.lines(iteration)
            self._lines[iteration] = {line.key(self.transcript.run, iteration): line for line in lines}
        return self._lines[iteration]


class PartOfRows(dict[int, Arrays]):
    """The states of some row shards: what is added up of them is not the total."""


@dataclass(frozen=True)
class ReplayExecutor(BareExecutor[PartyJob]):
    """Run a description over one row shard, or over all of them.

    With one, a total over rows is unknown, and so is all that follows from it: those steps have no states and do
    nothing.
    """

    only: int | None = None

    def shards(self, over: Over, load: Load, after: Sequence[Shards] = ()) -> Shards:
        if self.only is None or over is not Over.ROWS:
            return super().shards(over, load, after)
        return PartOfRows({self.only: load.read(self.job, self.context, self.only)})

    def load(self, load: Load, states: Shards) -> Shards:
        return _like(states, super().load(load, states))

    def rounds(self, step: Step, states: Shards) -> Shards:
        return _like(states, super().rounds(step, states))

    def beside(self, *lanes: Lane[Shards]) -> list[Shards]:
        return [_like(states, after) for (_, states), after in zip(lanes, super().beside(*lanes), strict=True)]

    def unless(self, stop: Shards, states: Shards) -> Shards:
        return _like(states, super().unless(stop, states))

    def total(self, over: Over, cut: Cut, *states: Shards) -> Shards:
        partial = any(isinstance(each, PartOfRows) or not each for each in states)
        return {} if self.only is not None and partial else super().total(over, cut, *states)

    def join(self, left: Shards, right: Shards) -> Shards:
        return _like(left, {shard: {**state, **right[shard]} for shard, state in left.items() if shard in right})


def _like(states: Shards, after: Shards) -> Shards:
    return PartOfRows(after) if isinstance(states, PartOfRows) else after


# files
def link_files(run: RunFolder, folder: Path) -> RunFolder:
    """Make a folder with a link to each file of a run: what is written there replaces the link, not the file."""
    place = folder / run.run
    for parent, _, names in os.walk(run.path):
        if run.transcripts.name in Path(parent).relative_to(run.path).parts:
            continue
        here = place / Path(parent).relative_to(run.path)
        here.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name in names:
            (here / name).symlink_to(Path(parent, name).absolute())
    return RunFolder(place)


def different_files(original: RunFolder, replayed: RunFolder, key: bytes) -> list[str]:
    """The files of shares that a replay has written with other arrays than the run has; those that it forgot pass."""
    different = []
    here, there = Checkpoints(replayed, key), Checkpoints(original, key)
    for file in sorted(replayed.path.rglob("*.arrow")):
        name = file.relative_to(replayed.path)
        if not file.is_symlink() and (original.path / name).exists():
            made, kept = here.read_file(file), there.read_file(original.path / name)
            if any(
                array_name not in kept or not np.array_equal(kept[array_name], array)
                for array_name, array in made.items()
                if array_name != "stop"
            ):
                different.append(f"{original.path / name} is not what the protocol makes of the committed inputs")
    return different
