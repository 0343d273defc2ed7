"""Parties that make correlations by oblivious transfer, in memory: set-up and places, with small LPN sets."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from support.ot_dealing import SMALL
from support.parties import MANIFEST, NAMES, TIMEOUT_S, InMemoryExchange, Shards, in_parallel, shapes_of
from veilmeans.io.storage.scratch import Scratch
from veilmeans.io.storage.triple_store import StoreRun, TripleStore
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Arrays
from veilmeans.schemas.party import Party
from veilmeans.schemas.run_folder import StoreFolder
from veilmeans.transforms.offline.ot_places import OtPlace
from veilmeans.transforms.offline.ot_setup import OtSetup, Provider
from veilmeans.transforms.offline.traced_job import Needs
from veilmeans.transforms.rounds.executor import run_rounds
from veilmeans.transforms.rounds.party_context import OpenPartyContext
from veilmeans.transforms.rounds.protocol import Protocol
from veilmeans.transforms.rounds.trace import trace


def parties(count: int) -> list[Party]:
    return [Party(i, NAMES[:count]) for i in range(count)]


def small_setup(provider: Provider = "ot", places: int = 1) -> OtSetup:
    """A set-up whose LPN sets are far too small to be secure, and fast."""
    return OtSetup("store", places, provider, setup=SMALL, main=SMALL)


def fresh_states(count: int = 2) -> list[dict[str, np.ndarray]]:
    """What each party draws for a store: its seed and its contribution to the nonce."""
    names = ("seed", "contribution")
    return [{name: np.frombuffer(os.urandom(32), np.uint8) for name in names} for _ in range(count)]


def run_all(
    protocol: Protocol, states: Sequence[Arrays], run: str = "offline", exchange: InMemoryExchange | None = None
) -> tuple[list[Arrays], InMemoryExchange]:
    """Run a protocol at all parties on the bare executor; return the final states and all messages."""
    shared, members = exchange or InMemoryExchange(), parties(len(states))

    def party(i: int) -> Arrays:
        context = OpenPartyContext(members[i], run, 0, shared, b"", None, Scratch("value"), TIMEOUT_S, he_context=None)
        return run_rounds(protocol, context, {0: states[i]})[0]

    return in_parallel([lambda i=i: party(i) for i in range(len(states))]), shared


def place_states(setup: OtSetup, states: Sequence[Arrays]) -> list[list[Arrays]]:
    """Each party's states of all places, from its state after the set-up."""
    if setup.provider == "iknp":
        names = ("seed", "nonce", "keys", "pairs")
        return [[{name: state[name] for name in names}] * setup.places for state in states]
    return [
        [
            {"seed": state["seed"], "nonce": state["nonce"], "base_q": q, "base_t": t}
            for q, t in setup.base_cots(party, state)
        ]
        for party, state in zip(parties(len(states)), states, strict=True)
    ]


def make_place(
    setup: OtSetup, states: Sequence[Arrays], needs: Needs, iteration: int = 0, shard: int = 0
) -> tuple[list[Arrays], InMemoryExchange]:
    """Make one place at all parties."""
    place = OtPlace(setup, Address("store.0", iteration, "", shard), needs)
    return run_all(place.protocol(), states, run=f"place-{iteration}-{shard}")


def ot_stores(protocol: Protocol, shards: Sequence[Shards], folder: Path, provider: Provider = "ot") -> list[StoreRun]:
    """Make all parties' triple stores for a protocol on shards of these shapes by oblivious transfer, claimed once."""
    needs = {
        shard: {stage.name: stage.needs for stage in trace(protocol, [shapes_of(each[shard]) for each in shards])}
        for shard in shards[0]
    }
    setup = small_setup(provider, places=len(needs))
    states, _ = run_all(setup.protocol(), fresh_states(len(shards)))
    ready = place_states(setup, states)
    manifest = replace(MANIFEST, provider=provider)
    folders = [StoreFolder(folder / name) for name in NAMES[: len(shards)]]
    stores = [TripleStore.create(each, manifest, os.urandom(32)) for each in folders]
    for number, (shard, wanted) in enumerate(needs.items()):
        made, _ = make_place(setup, [each[number] for each in ready], wanted, shard=shard)
        for store, parts in zip(stores, made, strict=True):
            store.write_corrections(0, 0, shard, parts)
    for store in stores:
        store.complete()
    return [TripleStore.open(each).claim(0, "test", "test") for each in folders]


def run_with_stores(
    protocol: Protocol, shards: Sequence[Shards], stores: Sequence[StoreRun]
) -> list[dict[int, Arrays]]:
    """Run a protocol at all parties with their triple stores."""
    exchange, members = InMemoryExchange(), parties(len(shards))

    def party(i: int) -> dict[int, Arrays]:
        seed, scratch = os.urandom(32), Scratch("value")
        context = OpenPartyContext(members[i], "test", 0, exchange, seed, stores[i], scratch, TIMEOUT_S)
        return run_rounds(protocol, context, shards[i])

    return in_parallel([lambda i=i: party(i) for i in range(len(shards))])
