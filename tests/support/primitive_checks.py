"""Helpers for tests of protocols on shares: share plain arrays, run the protocol, reconstruct the results."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from support.parties import reconstruct, run_parties, share_states
from veilmeans.crypto import ring
from veilmeans.schemas.arrays import Arrays
from veilmeans.transforms.rounds.protocol import Protocol

EDGES = [0, 1, 2, 2**20, 2**62 - 1, 2**62, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 2**20, 2**64 - 2, 2**64 - 1]
PARTIES = [2, 3, 4]
words = st.one_of(st.sampled_from(EDGES), st.integers(0, 2**64 - 1))
parties = st.sampled_from(PARTIES)
FEW = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
"""For tests that run a protocol for each example."""


def run_on_shares(protocol: Protocol, count: int, folder: Path, **values: NDArray[Any]) -> "Outcome":
    """Share each array among `count` parties and run the protocol."""
    shares = share_states({name: np.asarray(value, np.uint64) for name, value in values.items()}, count)
    states, _ = run_parties(protocol, shares, folder)
    return Outcome(states)


class Outcome:
    """The parties' states at the end of a protocol."""

    def __init__(self, states: Sequence[dict[int, Arrays]]) -> None:
        self.states = states

    def names(self) -> set[str]:
        """The names of the arrays in a state."""
        return set(self.states[0][0])

    def total(self, name: str) -> ring.Ring:
        """Rec of a value shared by sum."""
        return reconstruct(self.states, 0, name)

    def xor(self, name: str) -> NDArray[np.uint8]:
        """Rec of bits shared by XOR."""
        result = self.states[0][0][name].copy()
        for state in self.states[1:]:
            result ^= state[0][name]
        return result


def to_ring_elements(values: Sequence[int]) -> NDArray[np.uint64]:
    """Convert Python integers, possibly negative, to ring elements."""
    return np.array([value % 2**64 for value in values], np.uint64)
