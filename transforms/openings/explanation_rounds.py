"""Rec of what explains outliers, to the parties that the reveal policy names and to no one else.

Over row shards: "explained" (k × packed: [c_j ∧ outlier]), and "explained.score" (n: ⟨outlier·score⟩) if the policy
opens all contributions, in; at a recipient "cluster" (n; −1: no outlier) and "score" (n) out. Horizontally a party
learns those of its own rows. One element: "mu" (G × k × d: the centroids of clusters with an outlier, 0 elsewhere) in;
at a recipient "centroids" (k × its columns) out. Where small clusters stay closed, HAS (G × k) goes in and out beside
it: 1 for each cluster with an outlier that may be opened.
"""

from functools import partial

import numpy as np

from veilmeans.crypto import bits, ring
from veilmeans.schemas.arrays import Array, Arrays
from veilmeans.schemas.errors import RefusedError
from veilmeans.schemas.party import Party
from veilmeans.transforms.openings.reveal_policy import RevealPolicy, may_see
from veilmeans.transforms.primitives.share_and_open import commit_first
from veilmeans.transforms.rounds.executor import Step
from veilmeans.transforms.rounds.interfaces import Randomness
from veilmeans.transforms.rounds.protocol import Inbox, Protocol, Round, Sent, require
from veilmeans.transforms.statistics.explanations import EXPLAINED, EXPLAINED_SCORE, HAS


def explained_rows_step(policy: RevealPolicy) -> Step:
    halves = partial(_send_rows, policy), partial(_open_rows, policy)
    rows = Round("explanations", *halves, "[c ∧ outlier], ⟨outlier·score⟩, to be opened", broadcast=False)
    protocol = Protocol(f"reveal-explanations{policy.name}", commit_first(rows))
    return Step(protocol, "outliers' clusters, to the parties that the policy names")


def explained_centroids_step(policy: RevealPolicy) -> Step:
    halves = partial(_send_centroids, policy), partial(_open_centroids, policy)
    centroids = Round("explained", *halves, "⟨has·μ⟩, to be opened", broadcast=False)
    protocol = Protocol(f"reveal-explained{policy.name}", commit_first(centroids))
    return Step(protocol, "centroids of outliers' clusters, to the parties that the policy names")


def _rows_for(policy: RevealPolicy, party: Party, state: Arrays, index: int) -> Arrays:
    """Shares of what explains this shard's outliers to a party."""
    if not may_see(policy.explanations, party, state, index):
        return {}
    names = (EXPLAINED, EXPLAINED_SCORE) if policy.opens_whole_scores else (EXPLAINED,)
    return {name: state[name] for name in names}


def _send_rows(policy: RevealPolicy, party: Party, state: Arrays, _randomness: Randomness) -> Sent:
    return Sent(state, to={i: _rows_for(policy, party, state, i) for i in party.others})


def _open_rows(policy: RevealPolicy, party: Party, state: Arrays, inbox: Inbox, _randomness: Randomness) -> Arrays:
    mine = _rows_for(policy, party, state, party.index)
    if not mine:
        return {}
    hot = bits.unpack_rows(inbox.open_xor(EXPLAINED, mine[EXPLAINED]), int(state["rows"][0]))
    found = hot.sum(axis=0)
    if np.any(found > 1):
        peers = " or ".join(party.names[i] for i in party.others)
        raise RefusedError(f"an outlier was opened in two clusters: a share of {peers} is not right")
    opened: dict[str, Array] = {"cluster": np.where(found, np.argmax(hot, axis=0), -1).astype(np.int32)}
    if EXPLAINED_SCORE in mine:
        shown = inbox.open_sum(EXPLAINED_SCORE, require(mine, EXPLAINED_SCORE))
        opened["score"] = shown[: int(state["rows"][0])]
    return opened


def _centroids_for(policy: RevealPolicy, state: Arrays, index: int) -> dict[str, ring.Ring]:
    """A party's columns of the centroids that have outliers, any or its own; with HAS, if some stay closed."""
    if index not in policy.explanations:
        return {}
    mu = require(state, "mu")
    group = index if len(mu) > 1 else 0
    mine = {"mu": np.ascontiguousarray(mu[group][:, policy.layout.own_columns(index)])}
    return {**mine, HAS: require(state, HAS)[group]} if HAS in state else mine


def _send_centroids(policy: RevealPolicy, party: Party, state: Arrays, _randomness: Randomness) -> Sent:
    return Sent(state, to={i: _centroids_for(policy, state, i) for i in party.others})


def _open_centroids(policy: RevealPolicy, party: Party, state: Arrays, inbox: Inbox, _randomness: Randomness) -> Arrays:
    mine = _centroids_for(policy, state, party.index)
    opened = {name: inbox.open_sum(name, share) for name, share in mine.items()}
    return {("centroids" if name == "mu" else name): array for name, array in opened.items()}
