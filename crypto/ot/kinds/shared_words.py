"""Kinds with ring elements of M ≥ 3 parties by pairwise OTs: DaBit, Inject, Trunc by chains (`bit_chains`), Mul.

DaBit    M(M−1)/2 words of 8 bytes, M − 1 messages that wait for each other
Trunc    64 bits as for DaBit, weighed: ⟨r⟩ = Σ 2^l·⟨r_l⟩, ⟨r ≫ f⟩, ⟨r_63⟩
  Inject   (M−1)² words, and DaBit's for ⟨r⟩; each further bit of the same a M(M−1) words and DaBit's, then M messages
Mul      a_p·b_q = Σ 2^l·(bit l of a_p)·b_q (Gilboa) for every ordered pair; towards one peer m_1 − m_0 of bit 0 is
         b_q: 64 COTs and 256 or 264 bytes an ordered pair, one message
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from veilmeans.crypto import bits
from veilmeans.crypto.correlations import DaBit, Inject, Mul, Trunc, Unsigned
from veilmeans.crypto.ot.kinds.bit_chains import BitChain, ChainRun
from veilmeans.crypto.ot.kinds.word_correlations import correct, pack_products, unpack_products, weigh
from veilmeans.crypto.ot.ot_arrays import MessageShapes, OtRequest, Received, Sides
from veilmeans.schemas.arrays import Array


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
    return ChainRecipe(BitChain(kind.parties, kind.count), _dabit_parts)


def _dabit_parts(run: ChainRun) -> dict[str, Array]:
    return {"bit": bits.pack(run.choice[0]), "r": run.shares()["r"][0]}


def trunc_recipe(kind: Trunc) -> ChainRecipe:
    """The recipe for `Trunc` of three parties or more."""
    return ChainRecipe(BitChain(kind.parties, 64 * kind.count), partial(_trunc_parts, kind))


def _trunc_parts(kind: Trunc, run: ChainRun) -> dict[str, Array]:
    shared = run.shares()["r"].reshape(64, kind.count)
    return {"r": weigh(shared), "high": weigh(shared[kind.shift :]), "top": shared[63]}


def inject_recipe(kind: Inject) -> ChainRecipe:
    """The recipe for `Inject` of three parties or more: word 0 of an OT is for r·a, word 1 for ⟨r⟩."""
    chain = BitChain(kind.parties, kind.count // kind.times, kind.times, multiplies=True)
    return ChainRecipe(chain, partial(_inject_parts, kind), kind.dtype)


def _inject_parts(kind: Inject, run: ChainRun) -> dict[str, Array]:
    shares = run.shares()
    words = {"a": run.value, "r": shares["r"].reshape(-1), "ra": shares["a"].reshape(-1)}
    cut = {name: array.astype(kind.dtype) for name, array in words.items()}
    return {"bit": bits.pack(run.choice.reshape(-1)), **cut}


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
