"""BitProducts of M ≥ 3 parties by pairwise OTs: each party's run of the programs of `shared_programs`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import islice

import numpy as np

from veilmeans.crypto import prg
from veilmeans.crypto.correlations import BitProducts, ProductGroups
from veilmeans.crypto.ot.kinds.product_shares import add
from veilmeans.crypto.ot.kinds.shared_programs import Entry, SharedProgram, compile_shared
from veilmeans.crypto.ot.ot_arrays import MessageShapes, OtRequest, Received, Sides
from veilmeans.schemas.arrays import Array


def is_free(entry: Entry, sender: int, recipient: int, parties: int) -> bool:
    """True if the sender's bit of an entry is what the OT gives: towards the next party, so that none has them all."""
    return entry.free is not None and recipient == (sender + 1) % parties


@dataclass(frozen=True)
class SharedBitsByOt:
    """The recipe for `BitProducts` of three parties or more."""

    kind: BitProducts

    def requests(self) -> list[OtRequest]:
        return [
            OtRequest(chooser, 64 * groups.count * self.kind.words, len(step.entries), "planes")
            for groups, program in self._programs()
            for step in program.steps
            for chooser in range(self.kind.parties)
        ]

    @property
    def messages(self) -> int:
        return max((program.messages for _, program in self._programs()), default=0)

    def message_shapes(self, number: int, sender: int, recipient: int) -> MessageShapes:
        rows = (each.count * self._rows(program, number, sender, recipient) for each, program in self._programs())
        return {"bits": ((sum(rows) * self.kind.words,), np.uint64)}

    def message(self, party: int, sides: Sides, key: bytes, received: Received) -> dict[int, dict[str, Array]]:
        bits: dict[int, list[Array]] = {peer: [] for peer in range(self.kind.parties) if peer != party}
        for run, rows in self._runs(party, sides, key, received):
            for peer, sent in run.evaluate(rows)[1].items():
                bits[peer] += sent
        return {peer: {"bits": np.concatenate([np.empty(0, np.uint64), *rows])} for peer, rows in bits.items()}

    def parts(self, party: int, sides: Sides, key: bytes, received: Received) -> dict[str, Array]:
        masks: list[Array] = []
        sums: list[Array] = []
        for run, rows in self._runs(party, sides, key, received):
            for planes, values in ((masks, run.variables), (sums, run.shares(rows))):
                by_group = values.reshape(len(values), -1, self.kind.words).swapaxes(0, 1)
                planes.append(by_group.reshape(-1, self.kind.words))
        return {"mask": np.concatenate(masks), "sums": np.concatenate(sums)}

    def _programs(self) -> Iterator[tuple[ProductGroups, SharedProgram]]:
        return ((groups, compile_shared(groups.sums)) for groups in self.kind.groups)

    def _rows(self, program: SharedProgram, number: int, sender: int, recipient: int) -> int:
        """Rows of bits of a program in one message."""
        entries = (entry for step in program.steps for entry in step.entries if entry.level == number)
        return sum(not is_free(entry, sender, recipient, self.kind.parties) for entry in entries)

    def _runs(
        self, party: int, sides: Sides, key: bytes, received: Received
    ) -> Iterator[tuple["SharedRun", list[dict[int, Array]]]]:
        """Each program's run, and what was received for it: in each message from each peer, rows × words."""
        remaining, starts = iter(sides), [dict.fromkeys(message, 0) for message in received]
        for number, (groups, program) in enumerate(self._programs()):
            width = groups.count * self.kind.words
            variables = np.empty((groups.masks, width), np.uint64)
            prg.fill(prg.derive(key, f"variables {number}"), variables)
            taken = [list(islice(remaining, self.kind.parties)) for _ in program.steps]
            rows: list[dict[int, Array]] = []
            for level, message in enumerate(received):
                rows.append({})
                for peer, arrays in message.items():
                    start = starts[level][peer]
                    starts[level][peer] += width * self._rows(program, level, peer, party)
                    rows[-1][peer] = arrays["bits"][start : starts[level][peer]].reshape(-1, width)
            yield SharedRun.begin(program, party, self.kind.parties, taken, variables), rows


@dataclass(frozen=True)
class SharedRun:
    """A program at `party`; sides[step][chooser]; `variables` has the party's shares of the masks, masks × words."""

    program: SharedProgram
    party: int
    parties: int
    sides: Sequence[Sides]
    variables: Array

    @classmethod
    def begin(
        cls, program: SharedProgram, party: int, parties: int, sides: Sequence[Sides], variables: Array
    ) -> "SharedRun":
        """Give the masks the values that the OTs determine; the others keep theirs, which must be uniform."""
        following = (party + 1) % parties
        for step, side in zip(program.steps, sides, strict=True):
            variables[step.variable] = side[party][following].second
            for number, entry in enumerate(step.entries):
                if entry.free is not None:
                    variables[entry.free] = side[following][following].second[number]
        return cls(program, party, parties, sides, variables)

    def shares(self, received: Sequence[Mapping[int, Array]]) -> Array:
        """This party's shares of the outputs, outputs × words."""
        functions, _ = self.evaluate(received)
        shares = np.empty((len(self.program.outputs), self.variables.shape[1]), np.uint64)
        for share, output in zip(shares, self.program.outputs, strict=True):
            total = self._add(functions, *output)
            if total is None:
                raise ValueError("a share depends on bits that were not received")
            share[:] = total
        return shares

    def evaluate(self, received: Sequence[Mapping[int, Array]]) -> tuple[list[Array | None], dict[int, list[Array]]]:
        """Return the shares of the functions (None: not known yet), and the rows of the next message to each peer."""
        others = [peer for peer in range(self.parties) if peer != self.party]
        sent: dict[int, list[Array]] = {peer: [] for peer in others}
        rows = [{peer: iter(array) for peer, array in message.items()} for message in received]
        functions: list[Array | None] = []
        for step, side in zip(self.program.steps, self.sides, strict=True):
            products: list[Array | None] = []
            for number, entry in enumerate(step.entries):
                share = self._add(functions, entry.functions, entry.masks)
                if entry.level == len(received) and share is not None:
                    for peer in others:
                        if not is_free(entry, self.party, peer, self.parties):
                            sent[peer].append(share ^ side[peer][peer].second[number])
                if entry.level >= len(received) or share is None:
                    products.append(None)
                    continue
                bits = [
                    next(rows[entry.level][peer])
                    for peer in others
                    if not is_free(entry, peer, self.party, self.parties)
                ]
                strings = [side[chooser][peer].first[number] for peer in others for chooser in (self.party, peer)]
                products.append(_xor(*strings) ^ (self.variables[step.variable] & _xor(share, *bits)))
            functions = [
                add(*(functions[f] for f in before), *(products[e] for e in entries))
                for before, entries in step.functions
            ]
        return functions, sent

    def _add(self, functions: Sequence[Array | None], numbers: Sequence[int], masks: Sequence[int]) -> Array | None:
        """⊕ of functions and masks."""
        return add(*(functions[f] for f in numbers), *self.variables[list(masks)])


def _xor(*arrays: Array) -> Array:
    return reduce(np.bitwise_xor, arrays)
