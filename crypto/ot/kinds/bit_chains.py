"""A bit of M ≥ 3 parties times a word, by a chain of pairwise OTs in which each party adds its own bit.

A bit c of the chooser times a word y of another party is shared by one OT and one word, as between two parties
(`word_correlations`); a party's choice bits are the same in its OTs with all peers. For r = ⊕ c_p there are M steps. In
step i the party at position i chooses, and all that have a share of u offer it, so that w = c·u is shared:

  t ← t + w = (c ⊕ …)·a            u ← u − 2w = (−1)^(c ⊕ …)·a

  ⟨r⟩      a = 1: position 0 begins with t = c, u = 1 − 2c, and step i has the shares of i parties
  ⟨r·a⟩    begins with t = 0, u = a; in step 0 m_1 − m_0 is a share of a and costs nothing, for the first bit of each a

Each party is at each position for one M-th of the values.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from veilmeans.crypto import prg
from veilmeans.crypto.ot.kinds.word_correlations import correct, sign_of
from veilmeans.crypto.ot.ot_arrays import OtRequest, OtSide, Received, Sides
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
    sides: Sides = field(repr=False)
    key: bytes = field(repr=False)
    received: Received = field(repr=False)

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
