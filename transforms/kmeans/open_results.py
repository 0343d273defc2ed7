"""Rec of a run's results, to the parties that the reveal policy names and to no one else.

Shares of a result are masked afresh by the last product that made them, so that each of them alone, and those of
several parties together, tell no more than the value that they add up to.

Assignments, shard by shard: "c" (k × packed) in; at a recipient "label" (n) out. Horizontally a party learns those of
its own rows. Centroids and inertia, one element: "mu" (k × d), "inertia" in; at a recipient "centres" (k × its columns)
and "total" (1) out. Whoever may see all columns gets the scale of each one from its owner, too.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import apache_beam as beam
import numpy as np

from veilmeans.crypto import bits
from veilmeans.io.storage.checkpoints import assignments
from veilmeans.schemas.arrays import Array, Arrays
from veilmeans.schemas.errors import RefusedError
from veilmeans.schemas.layout import Layout
from veilmeans.schemas.party import Party
from veilmeans.schemas.shard import Shard
from veilmeans.transforms.kmeans.iteration import Seated, run_and_report
from veilmeans.transforms.kmeans.party_state import PartyJob, checkpoints_of
from veilmeans.transforms.rounds.beam_executor import RunProtocol
from veilmeans.transforms.rounds.interfaces import Randomness
from veilmeans.transforms.rounds.party_context import OpenPartyContext
from veilmeans.transforms.rounds.protocol import Inbox, Protocol, Round, Sent, require

OPENED = "opened"


def load_assignments(job: PartyJob, context: OpenPartyContext, shard: int) -> dict[str, Array]:
    """The shares of a shard's rows, and which party they belong to (M: all)."""
    place = job.place(shard)
    owner = job.kmeans.layout.parties if place.owner is None else place.owner
    shares = checkpoints_of(context).read_shard(assignments(context.iteration), shard)
    return {"c": shares["c"], "rows": np.array([place.block.rows]), "owner": np.array([owner])}


def keep_labels(context: OpenPartyContext, shard: int, opened: Arrays) -> None:
    if "label" in opened:
        checkpoints_of(context).write_shard(OPENED, shard, {"label": opened["label"]})


class LoadAssignments(Seated):
    def process(self, shard: int) -> Iterator[tuple[int, Shard]]:
        yield shard, Shard(arrays=load_assignments(self.job, self.context, shard))


class KeepLabels(Seated):
    def process(self, element: tuple[int, Shard]) -> Iterator[int]:
        shard, state = element
        keep_labels(self.context, shard, state.arrays)
        yield shard


@dataclass(frozen=True)
class RevealPolicy:
    """Who learns what; parties by their index."""

    layout: Layout
    assignments: frozenset[int] = frozenset()
    centroids: frozenset[int] = frozenset()
    all_columns: bool = False
    inertia: frozenset[int] = frozenset()
    name: str = ""
    """Part of the stages' names: openings by different policies have no address in common."""

    def columns(self, party: int) -> slice:
        """The columns whose centroids `party` may see."""
        return slice(0, self.layout.total_features) if self.all_columns else self.layout.own_columns(party)

    def opens_scale(self, party: int) -> bool:
        """Whether `party` needs the others' scales to read what it gets."""
        return self.layout.vertical and self.all_columns and party in self.centroids


def _build(job: PartyJob, policy: RevealPolicy, pipeline: beam.Pipeline) -> None:
    protocol = open_assignments(policy)
    start = pipeline | beam.Create([job.shards])
    if job.whole:
        _ = start | "Open" >> beam.ParDo(OpenWhole(job, policy))
        return
    _ = (
        start
        | "Shards" >> beam.FlatMap(list).with_output_types(int)
        | "Spread" >> beam.Reshuffle()
        | "Load" >> beam.ParDo(LoadAssignments(job)).with_output_types(tuple[int, Shard])
        | "Open" >> RunProtocol(protocol, job.context)
        | "Keep" >> beam.ParDo(KeepLabels(job))
    )


class OpenWhole(Seated):
    def __init__(self, job: PartyJob, policy: RevealPolicy) -> None:
        super().__init__(job)
        self.policy = policy

    def process(self, shards: list[int]) -> Iterator[int]:
        states: dict[int, Arrays] = {shard: load_assignments(self.job, self.context, shard) for shard in shards}
        for shard, opened in run_and_report(open_assignments(self.policy), self.context, states).items():
            keep_labels(self.context, shard, opened)
            yield shard


def open_assignments(policy: RevealPolicy) -> Protocol:
    """One round over the shards."""
    step = Round("assignments", partial(_send_rows, policy), partial(_see_rows, policy), "[c], to be opened")
    return Protocol(f"reveal-assignments{policy.name}", (step,))


def open_centroids(policy: RevealPolicy) -> Protocol:
    """One round for all that is k × d or less."""
    step = Round(
        "centres", partial(_send_centres, policy), partial(_see_centres, policy), "⟨μ⟩, ⟨inertia⟩, to be opened"
    )
    return Protocol(f"reveal-centres{policy.name}", (step,))


def _may_see(policy: RevealPolicy, state: Arrays, party: int) -> bool:
    """Whether `party` learns the clusters of this shard's rows; "owner" is M where all own them."""
    owner = int(state["owner"][0])
    return party in policy.assignments and owner in (party, policy.layout.parties)


def _send_rows(policy: RevealPolicy, party: Party, state: Arrays, randomness: Randomness) -> Sent:
    del randomness
    return Sent(state, to={i: {"c": state["c"]} if _may_see(policy, state, i) else {} for i in party.others})


def _see_rows(policy: RevealPolicy, party: Party, state: Arrays, inbox: Inbox, randomness: Randomness) -> Arrays:
    del randomness
    if not _may_see(policy, state, party.index):
        return {}
    hot = bits.unpack_rows(inbox.opened_xor("c", state["c"]), int(state["rows"][0]))
    if not np.all(hot.sum(axis=0) == 1):
        raise RefusedError(
            f"the opened assignments are not one cluster a row: a share of {_others(party)} is not right"
        )
    return {"label": np.argmax(hot, axis=0).astype(np.int32)}


def _send_centres(policy: RevealPolicy, party: Party, state: Arrays, randomness: Randomness) -> Sent:
    del randomness
    return Sent(state, to={i: _for_peer(policy, state, i) for i in party.others})


def _for_peer(policy: RevealPolicy, state: Arrays, peer: int) -> Arrays:
    message: dict[str, Array] = {}
    if peer in policy.centroids:
        message["mu"] = np.ascontiguousarray(require(state, "mu")[:, policy.columns(peer)])
    if policy.opens_scale(peer):
        message |= {"shift": state["shift"], "factor": state["factor"], "names": state["names"]}
    if peer in policy.inertia:
        message["inertia"] = require(state, "inertia")
    return message


def _see_centres(policy: RevealPolicy, party: Party, state: Arrays, inbox: Inbox, randomness: Randomness) -> Arrays:
    del randomness
    opened: dict[str, Array] = {}
    if party.index in policy.centroids:
        mine = np.ascontiguousarray(require(state, "mu")[:, policy.columns(party.index)])
        opened["centres"] = inbox.opened("mu", mine)
    if party.index in policy.inertia:
        opened["total"] = inbox.opened("inertia", require(state, "inertia"))
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


def _others(party: Party) -> str:
    return " or ".join(party.names[i] for i in party.others)
