"""Many transcripts of one protocol, and tests of what they tell."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from support.parties import shapes_of
from support.uniformity import LIMIT, chi_square
from veilmeans.crypto import prg, ring
from veilmeans.crypto.correlations import Kind
from veilmeans.io.storage.triple_store import Manifest, StoreRun, TripleStore, correction_name
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Array, Arrays
from veilmeans.schemas.party import Party
from veilmeans.transforms.offline.dealer import deal
from veilmeans.transforms.rounds.addressed_randomness import AddressedRandomness
from veilmeans.transforms.rounds.interfaces import CorrelationNeed, HomomorphicOperations, Randomness
from veilmeans.transforms.rounds.protocol import Inbox, Protocol, Stage
from veilmeans.transforms.rounds.trace import trace


# The parties in step, and everything they send and ask for.
@dataclass(frozen=True)
class Dealt(StoreRun):
    """A store's run in memory."""

    arrays: Arrays = field(default_factory=dict)

    def correction(self, address: Address, label: str) -> Array:
        return self.arrays[correction_name(address.stage, label)]


class Masked(np.ndarray):
    """An array that knows which randomness went into it; taking a part of it, or spreading it out, is remembered."""

    masks: frozenset[str] = frozenset()

    @classmethod
    def of(cls, array: Array, masks: frozenset[str]) -> "Masked":
        result = array.view(cls)
        result.masks = masks
        return result

    def __array_finalize__(self, source: object) -> None:
        self.masks = getattr(source, "masks", frozenset())

    def __getitem__(self, index: Any) -> Any:
        return Masked.of(np.atleast_1d(np.asarray(self)[index]), frozenset(f"part of {mask}" for mask in self.masks))

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = (), **options: Any) -> Any:
        if out:
            options["out"] = tuple(each.view(np.ndarray) for each in out)
        plain = [each.view(np.ndarray) if isinstance(each, Masked) else each for each in inputs]
        result = getattr(ufunc, method)(*plain, **options)
        masks = {
            mask if each.shape == np.shape(result) else f"spread {mask}"
            for each in (*inputs, *out)
            if isinstance(each, Masked)
            for mask in each.masks
        }
        if out:
            out[0].masks = frozenset(masks)
            return out[0]
        return Masked.of(np.asarray(result), frozenset(masks))


@dataclass
class Marking:
    """`Randomness` that keeps what it gives, and marks it for a send. Nobody may write into it."""

    inner: Randomness
    given: dict[str, Array]
    sending: bool
    scope: str = ""

    def uniform(self, label: str, shape: tuple[int, ...]) -> ring.Ring:
        return self._marked(self.scope + label, self.inner.uniform(label, shape))

    def correlated(self, kind: Kind, part: str) -> Array:
        return self._marked(CorrelationNeed(self.scope, kind).label(part), self.inner.correlated(kind, part))

    def homomorphic(self) -> HomomorphicOperations:
        return self.inner.homomorphic()

    def scoped(self, scope: str) -> "Marking":
        return Marking(self.inner.scoped(scope), self.given, self.sending, self.scope + scope)

    def _marked(self, label: str, array: Array) -> Array:
        self.given[label] = array
        result = Masked.of(array, frozenset({label})) if self.sending else array.view()
        result.flags.writeable = False
        return result


def plain(arrays: Arrays) -> dict[str, Array]:
    return {name: np.asarray(array) for name, array in arrays.items()}


@dataclass(frozen=True)
class Seen:
    """One round: what each party sent to whom (`None`: the same to all), and the randomness it was given."""

    sent: Mapping[tuple[int, int | None, str], Array]
    given: Sequence[Mapping[str, Array]]


def needs_of(protocol: Protocol, states: Sequence[Arrays]) -> dict[str, tuple[CorrelationNeed, ...]]:
    """What the dealer has to make."""
    return {stage.name: stage.needs for stage in trace(protocol, [shapes_of(state) for state in states])}


@dataclass
class Game:
    """All parties of one run. `where` says at what place they are, for those who watch."""

    protocol: Protocol
    states: Sequence[Arrays]
    seeds: Sequence[bytes]
    iteration: int = 0
    shard: int = 0
    needs: Mapping[str, tuple[CorrelationNeed, ...]] | None = None
    where: tuple[int, str] = (-1, "")

    def play(self) -> dict[str, Seen]:
        needs = needs_of(self.protocol, self.states) if self.needs is None else self.needs
        self.where = (-1, "")
        dealt = deal(self.seeds, "store", 0, Address("", self.iteration, "", self.shard), needs)
        manifest = Manifest("store", runs=1, iterations=9, rows=0, plan="")
        stores = [
            Dealt(TripleStore(Path("nowhere"), manifest, seed), 0, dealt.get(i, {}))
            for i, seed in enumerate(self.seeds)
        ]
        states, result = list(self.states), {}
        for stage in self.protocol.stages():
            states, result[stage.name] = self._round(stage, states, stores)
        self.states = states
        return result

    def _round(self, stage: Stage, states: Sequence[Arrays], stores: Sequence[Dealt]) -> tuple[list[Arrays], Seen]:
        parties = [Party(i, tuple("abcd"[: len(states)])) for i in range(len(states))]
        asked: list[dict[str, Array]] = [{} for _ in parties]

        def randomness(i: int, sending: bool) -> Marking:
            self.where = (i, stage.name)
            own = prg.derive(self.seeds[i], "own")
            address = Address("run", self.iteration, stage.name, self.shard)
            return Marking(AddressedRandomness(i, own, stores[i], address), asked[i], sending)

        sent = [stage.round.send(party, states[party.index], randomness(party.index, True)) for party in parties]
        after = []
        for party in parties:
            senders = stage.round.senders(party)
            inbox = Inbox(party, {i: plain(sent[i].for_peer(party.index)) for i in senders})
            state = plain(sent[party.index].state)
            after.append(stage.round.receive(party, state, inbox, randomness(party.index, False)))
        arrays: dict[tuple[int, int | None, str], Array] = {}
        for i, each in enumerate(sent):
            to: Mapping[int | None, Arrays] = {None: each.message} if each.to is None else dict(each.to)
            arrays |= {(i, peer, name): array for peer, message in to.items() for name, array in message.items()}
        return after, Seen(arrays, asked)


def seeds_of(run: object, parties: int) -> list[bytes]:
    return [prg.derive(b"transcripts", f"{run} {i}") for i in range(parties)]


# Every protocol, with two secrets each.
ROWS, RUNS = 4096, 8


def states(**shares: Sequence[Array]) -> list[Arrays]:
    return [dict(zip(shares, each, strict=True)) for each in zip(*shares.values(), strict=True)]


@dataclass(frozen=True)
class Case:
    """A protocol, and states at its beginning for secret number 0 or 1 and so many rows."""

    protocol: Protocol
    parties: int
    begin: Callable[[int, int], list[Arrays]]


# The yardstick: χ² of byte values. `LIMIT` is passed with probability 2·10^-13, and fewer than 2·10^5 are computed.
Transcripts = dict[str, dict[str, Array]]
"""Stage -> what it is (who to whom, or what is opened) -> runs × values."""
SAMPLE, LOOKED_AT = 512, 2048
"""Values of an array in one run that are looked at: for differences, and by themselves."""


def opened(sent: Mapping[tuple[int, int | None, str], Array]) -> Iterator[tuple[str, Array]]:
    """What the messages to all add up to, by sum and by XOR: uniform both, since each message has its own mask."""
    for name in sorted({name for _, to, name in sent if to is None}):
        arrays = [np.asarray(array) for (_, _, n), array in sent.items() if n == name]
        for operation in (np.add, np.bitwise_xor):
            yield f"opened {name} ({operation.__name__})", reduce(operation, arrays)


def watched(case: Case, which: int, runs: int = RUNS, rows: int = ROWS) -> tuple[Transcripts, Transcripts]:
    """What is sent and opened over many runs, and what else each recipient has: the randomness it was given."""
    begin = case.begin(which, rows)
    public: dict[str, dict[str, list[Array]]] = {}
    own: dict[str, dict[str, list[Array]]] = {}
    needs = needs_of(case.protocol, begin)
    for run in range(runs):
        seen = Game(case.protocol, begin, seeds_of((which, run), case.parties), needs=needs).play()
        for stage, each in seen.items():
            arrays = {f"{i}→{'all' if to is None else to}: {n}": a for (i, to, n), a in each.sent.items()}
            for what, array in (*arrays.items(), *opened(each.sent)):
                public.setdefault(stage, {}).setdefault(what, []).append(np.asarray(array).reshape(-1))
            for i, given in enumerate(each.given):
                for what, array in given.items():
                    own.setdefault(stage, {}).setdefault(f"{i}: {what}", []).append(array.reshape(-1))
    first, second = (
        {stage: {what: np.stack(a) for what, a in arrays.items()} for stage, arrays in table.items()}
        for table in (public, own)
    )
    return first, second


def pooled(values: Array) -> float:
    """χ² of all bytes together."""
    return chi_square(np.ascontiguousarray(values).view(np.uint8))


def differences(one: Array, other: Array) -> float:
    """The larger χ² of difference and XOR: one mask on two values leaves no mask."""
    return max(pooled(one - other), pooled(one ^ other))


def two_samples(one: Array, other: Array) -> float:
    """The largest two-sample χ² over the bytes of a word."""
    largest = 0.0
    for pair in zip(*(each.reshape(-1, 1).view(np.uint8).T for each in (one, other)), strict=True):
        a, b = (np.bincount(column, minlength=256).astype(float) for column in pair)
        largest = max(largest, float(((a - b) ** 2 / np.maximum(a + b, 1)).sum()))
    return largest


def not_uniform(public: Transcripts) -> list[str]:
    return [
        f"{stage} {what}"
        for stage, arrays in public.items()
        for what, values in arrays.items()
        if chi_square(values[:, :LOOKED_AT]) > LIMIT
    ]


def related(public: Transcripts, own: Transcripts) -> list[str]:
    """Values of one round whose difference is not uniform: of two messages; of two opened values; within one; of a
    message and what another party than its sender has."""
    found = []
    for stage, arrays in public.items():
        for what, values in arrays.items():
            half = values.shape[1] // 2
            within = {
                "halves": (values[:, :half], values[:, half : 2 * half]),
                "neighbours": (values[:, 1:], values[:, :-1]),
            }
            for how, (one, other) in within.items():
                if differences(one[:, :SAMPLE], other[:, :SAMPLE]) > LIMIT:
                    found.append(f"{stage} {what}: {how}")
        pairs = []
        for sort in ("→", "(add)", "(bitwise_xor)"):
            pairs += combinations([each for each in arrays.items() if sort in each[0]], 2)
        for mine in own.get(stage, {}).items():
            holder = mine[0][0]
            pairs += [(mine, theirs) for theirs in arrays.items() if not theirs[0].startswith(holder)]
        for (what, one), (other_what, other) in pairs:
            same = one.shape == other.shape and one.dtype == other.dtype and not _handed_over(what, other_what)
            if same and differences(one[:, :SAMPLE], other[:, :SAMPLE]) > LIMIT:
                found.append(f"{stage} {what} and {other_what}")
    return found


def _handed_over(own: str, sent: str) -> bool:
    """A share that its owner made for another party is, of course, what it sends."""
    holder, _, label = own.partition(": ")
    return label.startswith("share.") and sent == f"{holder}→{label.removeprefix('share.')}: x"


# Masks and addresses: exactly, not by statistics.
def masks_of(case: Case, rows: int = 72) -> list[tuple[str, frozenset[str]]]:
    """For each array that is sent: where and by whom, and the randomness of this round that went into it."""
    seen = Game(case.protocol, case.begin(1, rows), seeds_of("masks", case.parties)).play()
    return [
        (f"{stage} {sender}", getattr(array, "masks", frozenset()))
        for stage, each in seen.items()
        for (sender, _, _), array in each.sent.items()
    ]


def misused(used: Sequence[tuple[str, frozenset[str]]]) -> list[str]:
    """Arrays that have not exactly one mask, element by element; and masks on two arrays."""
    wrong = [f"{where}: {sorted(masks)}" for where, masks in used if len(masks) != 1 or " " in next(iter(masks))]
    once = [(where, mask) for where, masks in used for mask in masks]
    return wrong + [f"{where}: {mask} again" for where, mask in sorted(set(once)) if once.count((where, mask)) > 1]
