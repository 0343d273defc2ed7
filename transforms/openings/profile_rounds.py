"""Rec of profiles: to each party that the reveal policy names the clusters' sizes and the sums of its own columns.

One element: SIZES (k), SUMS (k + 1 × width; the last line is of all rows) and RECIPIENTS, for whom the sums are, in; at
a recipient the same SIZES and SUMS (k + 1 × its columns), opened, out. Where small clusters stay closed, their SIZES
and SUMS are 0, and OPEN (k) says which they are. Others learn nothing.
"""

from functools import partial

import numpy as np

from veilmeans.schemas.arrays import Array, Arrays
from veilmeans.schemas.party import Party
from veilmeans.transforms.openings.reveal_policy import RevealPolicy
from veilmeans.transforms.primitives.share_and_open import commit_first
from veilmeans.transforms.rounds.executor import Step
from veilmeans.transforms.rounds.interfaces import Randomness
from veilmeans.transforms.rounds.protocol import Inbox, Protocol, Round, Sent, require
from veilmeans.transforms.statistics.profiles import RECIPIENTS, SIZES, SUMS, Profiles
from veilmeans.transforms.statistics.small_clusters import OPEN


def profiles_step(policy: RevealPolicy) -> Step:
    halves = partial(_send, policy), partial(_open, policy)
    profiles = Round("profiles", *halves, "⟨n⟩, ⟨CᵀP⟩, to be opened", broadcast=False)
    protocol = Protocol(f"reveal-profiles{policy.name}", commit_first(profiles))
    return Step(protocol, "sizes and sums of clusters, to the parties that the policy names")


def _profile_of(policy: RevealPolicy, state: Arrays, index: int) -> dict[str, Array]:
    """Shares of a party's profile."""
    if index not in policy.profiles:
        return {}
    sizes, sums = state[SIZES], state[SUMS]
    columns = Profiles(policy.layout, len(sizes), tuple(state[RECIPIENTS].tolist()), 0).columns(index)
    mine = {SIZES: sizes, SUMS: np.ascontiguousarray(sums[:, columns])}
    return {**mine, OPEN: state[OPEN]} if OPEN in state else mine


def _send(policy: RevealPolicy, party: Party, state: Arrays, _randomness: Randomness) -> Sent:
    return Sent(state, to={i: _profile_of(policy, state, i) for i in party.others})


def _open(policy: RevealPolicy, party: Party, state: Arrays, inbox: Inbox, _randomness: Randomness) -> Arrays:
    mine = _profile_of(policy, state, party.index)
    return {name: inbox.open_sum(name, require(mine, name)) for name in mine}
