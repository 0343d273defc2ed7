"""The bare executor: a loop over rounds with an exchange, no Beam.

For the small k×d work (one element, all its rounds in one call), for tests, and as the yardstick of what Beam costs.
"""

from collections.abc import Mapping

from veilmeans.io.exchange.exchange import Outgoing
from veilmeans.schemas.arrays import Arrays
from veilmeans.transforms.rounds.party_context import OpenPartyContext, deliver, receive, send
from veilmeans.transforms.rounds.protocol import Protocol
from veilmeans.transforms.rounds.stage_metrics import Tally

Tallies = dict[str, Tally]


def counts_of(tallies: Tallies) -> dict[str, dict[str, int]]:
    """Each stage's costs as whole numbers."""
    return {stage: tally.counts() for stage, tally in tallies.items()}


def run_bare(
    protocol: Protocol, context: OpenPartyContext, shards: Mapping[int, Arrays], tallies: Tallies | None = None
) -> dict[int, Arrays]:
    """Run all rounds over all shards: every put of a round before any get."""
    states = dict(shards)
    for stage in protocol.stages():
        tally = Tally()
        outgoing: list[Outgoing] = []
        for shard, state in states.items():
            states[shard], messages = send(context, stage, shard, state, tally)
            outgoing += messages
        deliver(context, outgoing, tally)
        for shard, state in states.items():
            states[shard] = receive(context, stage, shard, state, tally)
        if tallies is not None:
            tallies[stage.name] = tally
    return states
