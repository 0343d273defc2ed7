"""Kinds with ring elements of M ≥ 3 parties by pairwise OTs: DaBit, Inject, Trunc, Mul.

A bit c of the chooser times a word y of another party is shared by one OT and one word, as between two parties
(`word_correlations`); a party's choice bits are the same in its OTs with all peers.

A bit r = ⊕ c_p times a word is a chain of M steps. In step i the party at position i chooses, and all that have a share
of u offer it, so that w = c·u is shared; then t ← t + w = (c ⊕ …)·a and u ← u − 2w = (−1)^(c ⊕ …)·a:

  DaBit    a = 1: position 0 begins with t = c, u = 1 − 2c             M(M−1)/2 words of 8 bytes, M − 1 messages
  Trunc    64 bits as for DaBit, weighed by ⟨r⟩ = Σ 2^l·⟨r_l⟩                                    64 times as many
  Inject   begins with t = 0, u = a; in step 0 m_1 − m_0 is a share of a and costs nothing, so (M−1)² words, and
           DaBit's for ⟨r⟩; for each further bit of the same a M(M−1) words and DaBit's; M messages if there are any
  Mul      a_p·b_q = Σ 2^l·(bit l of a_p)·b_q (Gilboa) for every ordered pair; towards one peer m_1 − m_0 of bit 0 is
           b_q                                       64 COTs and 256 or 264 bytes an ordered pair, one message

Each party is at each position for one M-th of the values.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from veilmeans.crypto import bits, prg
from veilmeans.crypto.correlations import DaBit, Inject, Mul, Trunc, Unsigned
from veilmeans.crypto.ot.kinds.word_correlations import correct, pack_products, sign_of, unpack_products, weigh
from veilmeans.crypto.ot.ot_arrays import MessageShapes, OtRequest, OtSide, Received, Sides
from veilmeans.schemas.arrays import Array

_TWO = np.uint64(2)


@dataclass(frozen=True)
class _Lane:
    """One party's shares of t and u for the values of one slice, times × size. `word`: of the OTs' strings."""

    word: int
    t: Array
    u: Array

    def add(self, w: Array) -> None:
        """t ← t + w, u ← u − 2w, in place."""
        np.add(self.t, w, out=self.t)
        np.subtract(self.u, _TWO * w, out=self.u)


@dataclass(frozen=True)
class BitChain:
    """⟨r⟩, and if `multiplies` ⟨r·a⟩, for `times` bits of each of `count` values."""

    parties: int
    count: int
    times: int = 1
    multiplies: bool = False

    @property
    def first_step(self) -> int:
        """The first step that sends a message."""
        return int(self.times == 1)

    @property
    def messages(self) -> int:
        return self.parties - self.first_step

    def requests(self) -> list[OtRequest]:
        width = 2 if self.multiplies else 1
        return [OtRequest(chooser, self.times * self.count, width, "words") for chooser in range(self.parties)]

    def shapes(self, number: int, sender: int, recipient: int) -> dict[str, tuple[int, int]]:
        """The shapes of the words "a" and "r" of a message."""
        step = number + self.first_step
        values = self._slice((recipient - step) % self.parties)
        size, shapes = values.stop - values.start, {}
        if self.multiplies:
            shapes["a"] = (self.times - (step == 0), size)
        if self.offers_r(sender, recipient, step):
            shapes["r"] = (self.times, size)
        return shapes

    def _slice(self, start: int) -> slice:
        """The values for which party `start` is at position 0."""
        return slice(self.count * start // self.parties, self.count * (start + 1) // self.parties)

    def slices(self) -> Iterator[tuple[int, slice]]:
        return ((start, self._slice(start)) for start in range(self.parties))

    def offers_r(self, sender: int, chooser: int, step: int) -> bool:
        """True if the sender is before the chooser, who is at position `step`."""
        return (sender - chooser) % self.parties >= self.parties - step


@dataclass(frozen=True)
class ChainRun:
    """A chain at one party, as far as the messages received carry it."""

    chain: BitChain
    party: int
    sides: Sides
    key: bytes
    received: Received

    @cached_property
    def choice(self) -> Array:
        """This party's share of r: its choice bits, times × count."""
        side = next(iter(self.sides[self.party].values()))
        return side.second.reshape(self.chain.times, self.chain.count)

    @cached_property
    def value(self) -> Array:
        """This party's share of a."""
        own = np.empty(self.chain.count, np.uint64)
        prg.fill(self.key, own)
        for start, values in self.chain.slices():
            if start != self.party:
                side = self.sides[start][start]
                own[values] = self._words(side.second, 0, values)[0] - self._words(side.first, 0, values)[0]
        return own

    def message(self) -> dict[int, dict[str, Array]]:
        """The next message to each peer."""
        step, chain = len(self.received) + self.chain.first_step, self.chain
        messages: dict[int, dict[str, Array]] = {}
        for start, values in chain.slices():
            chooser = (start + step) % chain.parties
            if chooser != self.party:
                lanes, side = self._lanes(start, values, step), self.sides[chooser][chooser]
                shapes = chain.shapes(len(self.received), self.party, chooser)
                messages[chooser] = {
                    name: self._offer(lanes[name], side, values)[-rows:] for name, (rows, _) in shapes.items()
                }
        return messages

    def shares(self) -> dict[str, Array]:
        """This party's shares of r, and of r·a, times × count."""
        found = {name: np.empty((self.chain.times, self.chain.count), np.uint64) for name in self._words_by_name()}
        for start, values in self.chain.slices():
            for name, lane in self._lanes(start, values, self.chain.parties).items():
                found[name][:, values] = lane.t
        return found

    def _words_by_name(self) -> dict[str, int]:
        return {"a": 0, "r": 1} if self.chain.multiplies else {"r": 0}

    def _lanes(self, start: int, values: slice, steps: int) -> dict[str, _Lane]:
        """The shares of t and u after so many steps for the values of one slice."""
        own = self.choice[:, values].astype(np.uint64)
        lanes = {}
        for name, word in self._words_by_name().items():
            if name == "a":
                u = np.repeat(self.value[None, values], self.chain.times, 0)
                lanes[name] = _Lane(word, np.zeros_like(own), u)
            else:
                begins = np.uint64(start == self.party)
                lanes[name] = _Lane(word, own * begins, sign_of(own) * begins)
        for step in range(steps):
            chooser = (start + step) % self.chain.parties
            for name, lane in lanes.items():
                if name == "r" and step == 0:
                    continue  # ⟨r⟩ begins with the choice bits of position 0
                if chooser == self.party:
                    lane.add(self._choose(name, lane, own, values, step))
                elif name == "a" or self.chain.offers_r(self.party, chooser, step):
                    lane.add(-self._words(self.sides[chooser][chooser].first, lane.word, values))
        return lanes

    def _choose(self, name: str, lane: _Lane, own: Array, values: slice, step: int) -> Array:
        """This party's share of c·u for its own c."""
        total: Array = own * lane.u
        for peer, side in self.sides[self.party].items():
            if name == "a" or self.chain.offers_r(peer, self.party, step):
                e = np.zeros_like(own)
                if step >= self.chain.first_step:
                    sent = self.received[step - self.chain.first_step][peer][name]
                    e[self.chain.times - len(sent) :] = sent
                total += self._words(side.first, lane.word, values) + own * e
        return total

    def _offer(self, lane: _Lane, side: OtSide, values: slice) -> Array:
        zero, one = (self._words(each, lane.word, values) for each in (side.first, side.second))
        return correct(zero, one, lane.u)

    def _words(self, strings: Array, word: int, values: slice) -> Array:
        found: Array = strings[word].reshape(self.chain.times, self.chain.count)[:, values]
        return found


@dataclass(frozen=True)
class ChainRecipe:
    """A recipe whose messages are those of a chain, in `dtype`; `finish` makes the parts."""

    chain: BitChain
    finish: Callable[[ChainRun], dict[str, Array]]
    dtype: Unsigned = np.uint64

    @property
    def messages(self) -> int:
        return self.chain.messages

    def requests(self) -> list[OtRequest]:
        return self.chain.requests()

    def message_shapes(self, number: int, sender: int, recipient: int) -> MessageShapes:
        return {name: (shape, self.dtype) for name, shape in self.chain.shapes(number, sender, recipient).items()}

    def message(self, party: int, sides: Sides, key: bytes, received: Received) -> dict[int, dict[str, Array]]:
        messages = ChainRun(self.chain, party, sides, key, received).message()
        return {
            peer: {name: words.astype(self.dtype) for name, words in message.items()}
            for peer, message in messages.items()
        }

    def parts(self, party: int, sides: Sides, key: bytes, received: Received) -> dict[str, Array]:
        return self.finish(ChainRun(self.chain, party, sides, key, received))


def dabit_recipe(kind: DaBit) -> ChainRecipe:
    """The recipe for `DaBit` of three parties or more."""
    return ChainRecipe(
        BitChain(kind.parties, kind.count), lambda run: {"bit": bits.pack(run.choice[0]), "r": run.shares()["r"][0]}
    )


def trunc_recipe(kind: Trunc) -> ChainRecipe:
    """The recipe for `Trunc` of three parties or more."""

    def finish(run: ChainRun) -> dict[str, Array]:
        shared = run.shares()["r"].reshape(64, kind.count)
        return {"r": weigh(shared), "high": weigh(shared[kind.shift :]), "top": shared[63]}

    return ChainRecipe(BitChain(kind.parties, 64 * kind.count), finish)


def inject_recipe(kind: Inject) -> ChainRecipe:
    """The recipe for `Inject` of three parties or more: word 0 of an OT is for r·a, word 1 for ⟨r⟩."""

    def finish(run: ChainRun) -> dict[str, Array]:
        shares = run.shares()
        words = {"a": run.value, "r": shares["r"].reshape(-1), "ra": shares["a"].reshape(-1)}
        cut = {name: array.astype(kind.dtype) for name, array in words.items()}
        return {"bit": bits.pack(run.choice.reshape(-1)), **cut}

    chain = BitChain(kind.parties, kind.count // kind.times, kind.times, multiplies=True)
    return ChainRecipe(chain, finish, kind.dtype)


@dataclass(frozen=True)
class SharedMulByOt:
    """The recipe for `Mul` of three parties or more."""

    kind: Mul

    messages = 1

    @property
    def _count(self) -> int:
        return int(np.prod(self.kind.shape, dtype=np.int64))

    def requests(self) -> list[OtRequest]:
        return [OtRequest(chooser, 64 * self._count, 1, "words") for chooser in range(self.kind.parties)]

    def message_shapes(self, _number: int, sender: int, recipient: int) -> MessageShapes:
        shapes: MessageShapes = {"c": ((32, self._count), np.uint64)}
        return shapes if self._gives_b(sender, recipient) else {**shapes, "b": ((self._count,), np.uint64)}

    def message(self, party: int, sides: Sides, _key: bytes, _received: Received) -> dict[int, dict[str, Array]]:
        b, messages = self._b(party, sides), {}
        for peer in sides[party]:
            side = sides[peer][peer]
            e = correct(self._by_bit(side.first), self._by_bit(side.second), b)
            messages[peer] = {"c": pack_products(e)}
            if not self._gives_b(party, peer):
                messages[peer]["b"] = e[0]
        return messages

    def parts(self, party: int, sides: Sides, _key: bytes, received: Received) -> dict[str, Array]:
        b, chosen = self._b(party, sides), sides[party]
        choice = self._by_bit(next(iter(chosen.values())).second).astype(np.uint64)
        a = weigh(choice)
        c = a * b
        for peer, side in chosen.items():
            e = unpack_products(received[0][peer]["c"])
            if not self._gives_b(peer, party):
                e[0] = received[0][peer]["b"]
            c += weigh(self._by_bit(side.first) + choice * e) - weigh(self._by_bit(sides[peer][peer].first))
        return {name: array.reshape(self.kind.shape) for name, array in {"a": a, "b": b, "c": c}.items()}

    def _gives_b(self, sender: int, chooser: int) -> bool:
        """True if the OTs with this chooser determine the sender's share of b."""
        return chooser == (sender + 1) % self.kind.parties

    def _b(self, party: int, sides: Sides) -> Array:
        following = (party + 1) % self.kind.parties
        side = sides[following][following]
        b: Array = self._by_bit(side.second)[0] - self._by_bit(side.first)[0]
        return b

    def _by_bit(self, values: Array) -> Array:
        return values.reshape(64, self._count)
