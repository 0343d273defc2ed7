"""Transcripts of protocols over many runs, and tests of what they reveal."""

from collections import Counter
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
from veilmeans.schemas.run_folder import StoreFolder
from veilmeans.transforms.offline.dealer import deal_corrections
from veilmeans.transforms.rounds.addressed_randomness import AddressedRandomness
from veilmeans.transforms.rounds.interfaces import CorrelationNeed, HomomorphicOperations, Randomness
from veilmeans.transforms.rounds.protocol import Inbox, Protocol, Stage
from veilmeans.transforms.rounds.trace import trace


# all parties of a run in step, and everything they send and ask for
@dataclass(frozen=True)
class InMemoryStoreRun(StoreRun):
    """A run of a triple store whose corrections are in memory."""

    arrays: Arrays = field(default_factory=dict)

    def correction(self, address: Address, label: str) -> Array:
        return self.arrays[correction_name(address.stage, label)]


class MaskedArray(np.ndarray):
    """An array that records the randomness in it, and whether that was indexed or broadcast before."""

    masks: frozenset[str] = frozenset()

    @classmethod
    def of(cls, array: Array, masks: frozenset[str]) -> "MaskedArray":
        result = array.view(cls)
        result.masks = masks
        return result

    def __array_finalize__(self, source: object) -> None:
        self.masks = getattr(source, "masks", frozenset())

    def __getitem__(self, index: Any) -> Any:
        return MaskedArray.of(
            np.atleast_1d(np.asarray(self)[index]), frozenset(f"indexed {mask}" for mask in self.masks)
        )

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = (), **options: Any) -> Any:
        if out:
            options["out"] = tuple(each.view(np.ndarray) for each in out)
        plain = [each.view(np.ndarray) if isinstance(each, MaskedArray) else each for each in inputs]
        result = getattr(ufunc, method)(*plain, **options)
        masks = {
            mask if each.shape == np.shape(result) else f"broadcast {mask}"
            for each in (*inputs, *out)
            if isinstance(each, MaskedArray)
            for mask in each.masks
        }
        if out:
            out[0].masks = frozenset(masks)
            return out[0]
        return MaskedArray.of(np.asarray(result), frozenset(masks))


@dataclass
class RecordedRandomness:
    """`Randomness` that records what it returns, read-only, and marks it for a send."""

    inner: Randomness
    returned: dict[str, Array]
    sending: bool
    scope: str = ""

    def uniform(self, label: str, shape: tuple[int, ...]) -> ring.Ring:
        return self._record(self.scope + label, self.inner.uniform(label, shape))

    def correlated(self, kind: Kind, part: str) -> Array:
        return self._record(CorrelationNeed(self.scope, kind).label(part), self.inner.correlated(kind, part))

    def he(self) -> HomomorphicOperations:
        return self.inner.he()

    def scoped(self, scope: str) -> "RecordedRandomness":
        return RecordedRandomness(self.inner.scoped(scope), self.returned, self.sending, self.scope + scope)

    def at(self, iteration: int, stage: str) -> "RecordedRandomness":
        return RecordedRandomness(self.inner.at(iteration, stage), self.returned, self.sending, f"{iteration}/{stage}/")

    def _record(self, label: str, array: Array) -> Array:
        self.returned[label] = array
        result = MaskedArray.of(array, frozenset({label})) if self.sending else array.view()
        result.flags.writeable = False
        return result


def without_marks(arrays: Arrays) -> dict[str, Array]:
    return {name: np.asarray(array) for name, array in arrays.items()}


@dataclass(frozen=True)
class RoundTranscript:
    """One round: what each party sent to whom (`None`: the same to all), and the randomness that it used."""

    sent: Mapping[tuple[int, int | None, str], Array]
    randomness: Sequence[Mapping[str, Array]]


def needs_of(protocol: Protocol, states: Sequence[Arrays]) -> dict[str, tuple[CorrelationNeed, ...]]:
    """The correlations that the dealer has to make."""
    return {stage.name: stage.needs for stage in trace(protocol, [shapes_of(state) for state in states])}


@dataclass
class InStepRun:
    """All parties of one run, in one thread. `at`: the party and the stage that are being computed."""

    protocol: Protocol
    states: Sequence[Arrays]
    seeds: Sequence[bytes]
    iteration: int = 0
    shard: int = 0
    needs: Mapping[str, tuple[CorrelationNeed, ...]] | None = None
    at: tuple[int, str] = (-1, "")

    def run(self) -> dict[str, RoundTranscript]:
        """Run the protocol; return the transcript of each stage."""
        needs = needs_of(self.protocol, self.states) if self.needs is None else self.needs
        self.at = (-1, "")
        dealt = deal_corrections(self.seeds, "store", 0, Address("", self.iteration, "", self.shard), needs)
        manifest = Manifest("store", runs=1, iterations=9, rows=0, plan="")
        stores = [
            InMemoryStoreRun(TripleStore(StoreFolder(Path("nowhere")), manifest, seed), 0, arrays=dealt.get(i, {}))
            for i, seed in enumerate(self.seeds)
        ]
        states, result = list(self.states), {}
        for stage in self.protocol.stages():
            states, result[stage.name] = self._run_round(stage, states, stores)
        self.states = states
        return result

    def _run_round(
        self, stage: Stage, states: Sequence[Arrays], stores: Sequence[InMemoryStoreRun]
    ) -> tuple[list[Arrays], RoundTranscript]:
        parties = [Party(i, tuple("abcd"[: len(states)])) for i in range(len(states))]
        used: list[dict[str, Array]] = [{} for _ in parties]

        def randomness(i: int, sending: bool) -> RecordedRandomness:
            self.at = (i, stage.name)
            own = prg.derive(self.seeds[i], "own")
            address = Address("run", self.iteration, stage.name, self.shard)
            return RecordedRandomness(AddressedRandomness(i, own, stores[i], address), used[i], sending)

        sent = [stage.round.send(party, states[party.index], randomness(party.index, True)) for party in parties]
        after = []
        for party in parties:
            senders = stage.round.senders(party)
            inbox = Inbox(party, {i: without_marks(sent[i].for_peer(party.index)) for i in senders})
            state = without_marks(sent[party.index].state)
            after.append(stage.round.receive(party, state, inbox, randomness(party.index, False)))
        arrays: dict[tuple[int, int | None, str], Array] = {}
        for i, each in enumerate(sent):
            to: Mapping[int | None, Arrays] = {None: each.message} if each.to is None else dict(each.to)
            arrays |= {(i, peer, name): array for peer, message in to.items() for name, array in message.items()}
        return after, RoundTranscript(arrays, used)


def seeds_of(run: object, parties: int) -> list[bytes]:
    """Derive the parties' seeds from the number of a run, so that tests give the same result each time."""
    return [prg.derive(b"transcripts", f"{run} {i}") for i in range(parties)]


# a protocol, with two secrets
ROWS, RUNS = 4096, 8


def states(**shares: Sequence[Array]) -> list[Arrays]:
    """Make each party's state from name -> shares."""
    return [dict(zip(shares, each, strict=True)) for each in zip(*shares.values(), strict=True)]


@dataclass(frozen=True)
class Case:
    """A protocol, and its initial states for secret number 0 or 1 and a number of rows."""

    protocol: Protocol
    parties: int
    begin: Callable[[int, int], list[Arrays]]


# the statistic: χ² of byte values
Transcripts = dict[str, dict[str, Array]]
"""Stage -> description (sender→recipient: name, or an opened array) -> runs × values."""
PAIR_SAMPLE, SAMPLE = 512, 2048
"""Values of an array in one run that are tested: in pairs for differences, and by themselves."""


def opened(sent: Mapping[tuple[int, int | None, str], Array]) -> Iterator[tuple[str, Array]]:
    """Add up the messages to all, by sum and by XOR: both are uniform, since each message has its own mask."""
    for name in sorted({name for _, to, name in sent if to is None}):
        arrays = [np.asarray(array) for (_, _, n), array in sent.items() if n == name]
        for operation in (np.add, np.bitwise_xor):
            yield f"opened {name} ({operation.__name__})", reduce(operation, arrays)


def record(case: Case, secret: int, runs: int = RUNS, rows: int = ROWS) -> tuple[Transcripts, Transcripts]:
    """Record what is sent and opened over many runs, and the randomness that each party used."""
    begin = case.begin(secret, rows)
    public: dict[str, dict[str, list[Array]]] = {}
    own: dict[str, dict[str, list[Array]]] = {}
    needs = needs_of(case.protocol, begin)
    for run in range(runs):
        transcript = InStepRun(case.protocol, begin, seeds_of((secret, run), case.parties), needs=needs).run()
        for stage, each in transcript.items():
            arrays = {f"{i}→{'all' if to is None else to}: {n}": a for (i, to, n), a in each.sent.items()}
            for what, array in (*arrays.items(), *opened(each.sent)):
                public.setdefault(stage, {}).setdefault(what, []).append(np.asarray(array).reshape(-1))
            for i, randomness in enumerate(each.randomness):
                for what, array in randomness.items():
                    own.setdefault(stage, {}).setdefault(f"{i}: {what}", []).append(array.reshape(-1))
    first, second = (
        {stage: {what: np.stack(a) for what, a in arrays.items()} for stage, arrays in table.items()}
        for table in (public, own)
    )
    return first, second


def byte_chi_square(values: Array) -> float:
    """χ² of all bytes together."""
    return chi_square(np.ascontiguousarray(values).view(np.uint8))


def differences(one: Array, other: Array) -> float:
    """The larger χ² of difference and XOR, in which a mask that is used twice cancels out."""
    return max(byte_chi_square(one - other), byte_chi_square(one ^ other))


def two_samples(one: Array, other: Array) -> float:
    """The largest two-sample χ² over the bytes of a word."""
    largest = 0.0
    for pair in zip(*(each.reshape(-1, 1).view(np.uint8).T for each in (one, other)), strict=True):
        a, b = (np.bincount(column, minlength=256).astype(float) for column in pair)
        largest = max(largest, float(((a - b) ** 2 / np.maximum(a + b, 1)).sum()))
    return largest


def not_uniform(public: Transcripts) -> list[str]:
    """List the arrays that are not uniform."""
    return [
        f"{stage} {what}"
        for stage, arrays in public.items()
        for what, values in arrays.items()
        if chi_square(values[:, :SAMPLE]) > LIMIT
    ]


def related(public: Transcripts, own: Transcripts) -> list[str]:
    """List pairs of values of one round whose difference is not uniform.

    Pairs are two messages; two opened arrays; values of one array; a message and the randomness of another party than
    its sender.
    """
    pairs = [f"{stage} {what}" for stage, arrays in public.items() for what in _related_within(arrays)]
    for stage, arrays in public.items():
        for (what, one), (other_what, other) in _pairs(arrays, own.get(stage, {})):
            comparable = one.shape == other.shape and one.dtype == other.dtype
            if comparable and not _is_share_for_peer(what, other_what) and _differ_too_little(one, other):
                pairs.append(f"{stage} {what} and {other_what}")
    return pairs


def _differ_too_little(one: Array, other: Array) -> bool:
    return differences(one[:, :PAIR_SAMPLE], other[:, :PAIR_SAMPLE]) > LIMIT


def _related_within(arrays: Mapping[str, Array]) -> Iterator[str]:
    """Compare the two halves of each array, and its adjacent values."""
    for what, values in arrays.items():
        if values.shape[1] < 2:
            continue
        half = values.shape[1] // 2
        if _differ_too_little(values[:, :half], values[:, half : 2 * half]):
            yield f"{what}: halves"
        if _differ_too_little(values[:, 1:], values[:, :-1]):
            yield f"{what}: adjacent values"


def _pairs(arrays: Mapping[str, Array], own: Mapping[str, Array]) -> Iterator[tuple[tuple[str, Array], ...]]:
    for kind in ("→", "(add)", "(bitwise_xor)"):
        yield from combinations([each for each in arrays.items() if kind in each[0]], 2)
    for mine in own.items():
        holder = mine[0][0]
        yield from ((mine, theirs) for theirs in arrays.items() if not theirs[0].startswith(holder))


def _is_share_for_peer(own: str, sent: str) -> bool:
    """Return whether the randomness is a share that its owner drew for another party, and so the message itself."""
    holder, _, label = own.partition(": ")
    return label.startswith("share.") and sent == f"{holder}→{label.removeprefix('share.')}: x"


# masks: exactly, not by statistics
def masks_of(case: Case, rows: int = 72) -> list[tuple[str, frozenset[str]]]:
    """List each array that is sent: stage and sender, and the randomness of this round that is in it."""
    transcript = InStepRun(case.protocol, case.begin(1, rows), seeds_of("masks", case.parties)).run()
    return [
        (f"{stage} {sender}", getattr(array, "masks", frozenset()))
        for stage, each in transcript.items()
        for (sender, _, _), array in each.sent.items()
    ]


def misused_masks(used: Sequence[tuple[str, frozenset[str]]]) -> list[str]:
    """List the arrays without exactly one mask, element by element, and the masks that are on two arrays."""
    wrong = [f"{where}: {sorted(masks)}" for where, masks in used if len(masks) != 1 or " " in next(iter(masks))]
    uses = Counter((where, mask) for where, masks in used for mask in masks)
    return wrong + [f"{where}: {mask} again" for (where, mask), count in sorted(uses.items()) if count > 1]
