"""What the tests of protocols on shares have in common: share plain arrays, run, put together again."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from support.parties import joined, run_parties, split
from veilmeans.crypto import ring
from veilmeans.schemas.arrays import Arrays
from veilmeans.transforms.rounds.protocol import Protocol

EDGES = [0, 1, 2, 2**20, 2**62 - 1, 2**62, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 2**20, 2**64 - 2, 2**64 - 1]
PARTIES = [2, 3, 4]
words = st.one_of(st.sampled_from(EDGES), st.integers(0, 2**64 - 1))
parties = st.sampled_from(PARTIES)


def run(protocol: Protocol, count: int, folder: Path, **values: NDArray[Any]) -> "Outcome":
    """Share each array among `count` parties, run the protocol."""
    shares = {
        name: split(np.asarray(value, np.uint64), count, seed) for seed, (name, value) in enumerate(values.items())
    }
    shards: list[dict[int, Arrays]] = [{0: {name: parts[i] for name, parts in shares.items()}} for i in range(count)]
    states, _ = run_parties(protocol, shards, folder)
    return Outcome(states)


class Outcome:
    """The parties' states at the end."""

    def __init__(self, states: Sequence[dict[int, Arrays]]) -> None:
        self.states = states

    def names(self) -> set[str]:
        return set(self.states[0][0])

    def total(self, name: str) -> ring.Ring:
        """Rec of a value shared by sum."""
        return joined(self.states, 0, name)

    def xor(self, name: str) -> NDArray[np.uint8]:
        """Rec of bits shared by XOR."""
        result = self.states[0][0][name].copy()
        for state in self.states[1:]:
            result ^= state[0][name]
        return result


def signed(values: Sequence[int]) -> NDArray[np.uint64]:
    """Python integers, possibly negative, as ring elements."""
    return np.array([value % 2**64 for value in values], np.uint64)
