"""Rec of a run's results, to the parties that the reveal policy names and to no one else.

Shares of a result are masked afresh by the last product that made them, so that each of them alone, and those of
several parties together, reveal no more than the value that they add up to.

Assignments, over row shards: "c" (k × packed) in; at a recipient "label" (n) out. Horizontally a party learns those of
its own rows, and so with scores and outliers: "shown" (n), "outlier" (packed) in, "score" and "outlier" (n) out, where
they are for it. Centroids and inertia, one element: "mu" (k × d), "inertia" in; at a recipient "centroids" (k × its
columns) and "total" (1) out; where small clusters stay closed, their "mu" are 0, and OPEN (k) in and out says which
they are. Whoever may see all columns gets the scale of each one from its owner, too.
"""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np

from veilmeans.crypto import bits, ring
from veilmeans.io.storage.checkpoints import assignments, scores
from veilmeans.io.storage.encoded_shards import pad_rows
from veilmeans.schemas.arrays import Array, Arrays
from veilmeans.schemas.errors import RefusedError
from veilmeans.schemas.layout import RowShard
from veilmeans.schemas.party import Party
from veilmeans.schemas.run_folder import OPENED, OPENED_EXPLANATIONS, OPENED_SCORES
from veilmeans.transforms.kmeans import state_shapes as shapes
from veilmeans.transforms.kmeans.party_state import PartyJob, checkpoints_of
from veilmeans.transforms.openings.explanation_rounds import explained_centroids_step, explained_rows_step
from veilmeans.transforms.openings.profile_rounds import profiles_step
from veilmeans.transforms.openings.reveal_policy import RevealPolicy, may_see
from veilmeans.transforms.primitives.share_and_open import commit_first
from veilmeans.transforms.rounds.executor import Executor, Keep, Load, Over, Step
from veilmeans.transforms.rounds.interfaces import Randomness
from veilmeans.transforms.rounds.party_context import OpenPartyContext
from veilmeans.transforms.rounds.protocol import Inbox, Protocol, Round, Sent, require
from veilmeans.transforms.statistics.small_clusters import OPEN

S = TypeVar("S")


def open_assignments(policy: RevealPolicy, run: Executor[S]) -> S:
    """Open the clusters of all rows, one round over the row shards."""
    return run.keep(KEEP_LABELS, run.rounds(assignments_step(policy), run.shards(Over.ROWS, ASSIGNMENTS)))


def open_scores(policy: RevealPolicy, run: Executor[S]) -> S:
    """Open the scores of all rows, and which are outliers, one round over the row shards."""
    return run.keep(KEEP_OPENED_SCORES, run.rounds(scores_step(policy), run.shards(Over.ROWS, SHARES_OF_SCORES)))


def open_explained_rows(policy: RevealPolicy, run: Executor[S]) -> S:
    """Open the outliers' clusters, and their scores if the policy says so, one round over the row shards."""
    rows = run.shards(Over.ROWS, EXPLAINED_ROWS)
    return run.keep(KEEP_OPENED_EXPLANATIONS, run.rounds(explained_rows_step(policy), rows))


def open_explained_centroids(policy: RevealPolicy, explained: Load, run: Executor[S]) -> S:
    """Open the centroids of clusters with an outlier, one round."""
    return run.rounds(explained_centroids_step(policy), run.shards(Over.ONE, explained))


def open_profiles(policy: RevealPolicy, profile: Load, run: Executor[S]) -> S:
    """Open sizes and sums of the final clusters, one round."""
    return run.rounds(profiles_step(policy), run.shards(Over.ONE, profile))


def open_centroids(policy: RevealPolicy, results: Load, run: Executor[S]) -> S:
    """Open centroids and inertia, one round for all that is k × d or less."""
    return run.rounds(centroids_step(policy), run.shards(Over.ONE, results))


def _read_assignments(job: PartyJob, context: OpenPartyContext, shard: int) -> Arrays:
    """Shares of a row shard's assignments, and the party that its rows belong to (M: all)."""
    return _read_shares(assignments, job, context, shard)


def _read_scores(job: PartyJob, context: OpenPartyContext, shard: int) -> Arrays:
    return _read_shares(scores, job, context, shard)


def _read_shares(kind: Callable[[int], str], job: PartyJob, context: OpenPartyContext, shard: int) -> Arrays:
    row_shard = job.steps.layout.row_shard(shard)
    owner = job.steps.layout.parties if row_shard.owner is None else row_shard.owner
    shares = checkpoints_of(context).read_shard(kind(context.iteration + job.steps.final_assignment), shard)
    shares = {name: _without_padding(share, row_shard) for name, share in shares.items()}
    return {**shares, "rows": np.array([row_shard.rows]), "owner": np.array([owner])}


def _without_padding(share: Array, row_shard: RowShard) -> Array:
    """Zeros as shares of the padding: where it is put would say which centroid is the nearest to the origin."""
    if not row_shard.padding:
        return share
    if share.shape == (row_shard.shape.rows,):
        return pad_rows(share[: row_shard.rows], row_shard.shape.rows)
    return share & bits.first_lanes(row_shard.rows, row_shard.shape.rows)


def _keep_rows(kind: str, _job: PartyJob, context: OpenPartyContext, shard: int, state: Arrays) -> None:
    if state:
        checkpoints_of(context).write_shard(kind, shard, state)


def _keep_labels(_job: PartyJob, context: OpenPartyContext, shard: int, state: Arrays) -> None:
    if "label" in state:
        checkpoints_of(context).write_shard(OPENED, shard, {"label": state["label"]})


ASSIGNMENTS = Load(_read_assignments, shapes.assignments, kept=("assignments", "checkpoint"))
KEEP_LABELS = Keep("labels", _keep_labels)
SHARES_OF_SCORES = Load(_read_scores, shapes.scores, kept=("scores", "checkpoint"))
KEEP_OPENED_SCORES = Keep("opened scores", partial(_keep_rows, OPENED_SCORES))
EXPLAINED_ROWS = Load(_read_scores, shapes.explained_rows, kept=("scores", "checkpoint"))
KEEP_OPENED_EXPLANATIONS = Keep("opened explanations", partial(_keep_rows, OPENED_EXPLANATIONS))


def assignments_step(policy: RevealPolicy) -> Step:
    protocol = Protocol(f"reveal-assignments{policy.name}", commit_first(assignments_round(policy)))
    return Step(protocol, "clusters, to the parties that the policy names")


def assignments_round(policy: RevealPolicy) -> Round:
    halves = partial(_send_rows, policy), partial(_open_rows, policy)
    return Round("assignments", *halves, "[c], to be opened", broadcast=False)


def scores_step(policy: RevealPolicy) -> Step:
    halves = partial(_send_scores, policy), partial(_open_scores, policy)
    rows = Round("scores", *halves, "⟨score⟩, [outlier], to be opened", broadcast=False)
    protocol = Protocol(f"reveal-scores{policy.name}", commit_first(rows))
    return Step(protocol, "distances to own centroids, outliers, to the parties that the policy names")


def centroids_step(policy: RevealPolicy) -> Step:
    protocol = Protocol(f"reveal-centroids{policy.name}", commit_first(centroids_round(policy)))
    return Step(protocol, "centroids, inertia, to the parties that the policy names")


def centroids_round(policy: RevealPolicy) -> Round:
    halves = partial(_send_results, policy), partial(_open_results, policy)
    return Round("centroids", *halves, "⟨μ⟩, ⟨inertia⟩, to be opened", broadcast=False)


def _send_rows(policy: RevealPolicy, party: Party, state: Arrays, _randomness: Randomness) -> Sent:
    return Sent(
        state, to={i: {"c": state["c"]} if may_see(policy.assignments, party, state, i) else {} for i in party.others}
    )


def _open_rows(policy: RevealPolicy, party: Party, state: Arrays, inbox: Inbox, _randomness: Randomness) -> Arrays:
    if not may_see(policy.assignments, party, state, party.index):
        return {}
    hot = bits.unpack_rows(inbox.open_xor("c", state["c"]), int(state["rows"][0]))
    if not np.all(hot.sum(axis=0) == 1):
        peers = " or ".join(party.names[i] for i in party.others)
        raise RefusedError(f"the opened assignments are not one cluster a row: a share of {peers} is not right")
    return {"label": np.argmax(hot, axis=0).astype(np.int32)}


def _send_scores(policy: RevealPolicy, party: Party, state: Arrays, _randomness: Randomness) -> Sent:
    return Sent(state, to={i: _scores_for(policy, party, state, i) for i in party.others})


def _scores_for(policy: RevealPolicy, party: Party, state: Arrays, index: int) -> Arrays:
    """Shares of the results of this shard's rows that are for a party."""
    named = {"shown": policy.scores, "outlier": policy.outliers}
    return {name: state[name] for name, who in named.items() if may_see(who, party, state, index)}


def _open_scores(policy: RevealPolicy, party: Party, state: Arrays, inbox: Inbox, _randomness: Randomness) -> Arrays:
    opened: dict[str, Array] = {}
    mine = _scores_for(policy, party, state, party.index)
    if "shown" in mine:
        opened["score"] = inbox.open_sum("shown", require(mine, "shown"))[: int(state["rows"][0])]
    if "outlier" in mine:
        opened["outlier"] = bits.unpack(inbox.open_xor("outlier", mine["outlier"]), int(state["rows"][0]))
    return opened


def _send_results(policy: RevealPolicy, party: Party, state: Arrays, _randomness: Randomness) -> Sent:
    return Sent(state, to={i: _for_peer(policy, state, i) for i in party.others})


def _for_peer(policy: RevealPolicy, state: Arrays, peer: int) -> Arrays:
    message: dict[str, Array] = {}
    if peer in policy.centroids:
        message |= _centroids_for(policy, state, peer)
    if policy.opens_scale(peer):
        message |= {"shift": state["shift"], "factor": state["factor"], "names": state["names"]}
    if peer in policy.inertia:
        message["inertia"] = require(state, "inertia")
    return message


def _centroids_for(policy: RevealPolicy, state: Arrays, index: int) -> dict[str, ring.Ring]:
    """Shares of the centroids that a party may see, and of which of them may be opened, if some stay closed."""
    mine = {"mu": np.ascontiguousarray(require(state, "mu")[:, policy.columns(index)])}
    return {**mine, OPEN: require(state, OPEN)} if OPEN in state else mine


def _open_results(policy: RevealPolicy, party: Party, state: Arrays, inbox: Inbox, _randomness: Randomness) -> Arrays:
    opened: dict[str, Array] = {}
    if party.index in policy.centroids:
        mine = _centroids_for(policy, state, party.index)
        opened["centroids"] = inbox.open_sum("mu", mine.pop("mu"))
        opened |= {name: inbox.open_sum(name, share) for name, share in mine.items()}
    if party.index in policy.inertia:
        opened["total"] = inbox.open_sum("inertia", require(state, "inertia"))
    if policy.opens_scale(party.index):
        opened |= _scales(policy, party, state, inbox)
    return opened


def _scales(policy: RevealPolicy, party: Party, state: Arrays, inbox: Inbox) -> dict[str, Array]:
    """Everyone's scales and column names, in the parties' order."""
    scales: dict[str, Array] = {}
    for i in range(party.count):
        source = state if i == party.index else inbox.messages[i]
        for name in ("shift", "factor"):
            like = np.zeros(policy.layout.features[i])
            scales[f"{name}{i}"] = state[name] if i == party.index else inbox.from_peer(i, name, like)
        scales[f"names{i}"] = source.get("names", np.zeros(0, np.uint8))
    return scales
