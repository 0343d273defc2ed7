"""Two, three or more parties for tests: configurations with real keys, dealt triples, in-memory and real exchanges.

Only here does one function hold the secrets of several parties.
"""

import fcntl
import os
import socket
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from veilmeans.crypto import prg, ring
from veilmeans.io.exchange.exchange import Outgoing
from veilmeans.io.storage.scratch import Scratch
from veilmeans.io.storage.triple_store import Manifest, StoreRun, TripleStore, correction_name
from veilmeans.pipelines.configure.party_keys import make_keys
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Array, Arrays, from_stream
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import PeerError, RefusedError
from veilmeans.schemas.message import MessageKey
from veilmeans.schemas.party import Party
from veilmeans.schemas.run_folder import StoreFolder
from veilmeans.transforms.offline.dealer import deal_corrections
from veilmeans.transforms.rounds.executor import run_rounds
from veilmeans.transforms.rounds.party_context import OpenPartyContext
from veilmeans.transforms.rounds.protocol import Protocol
from veilmeans.transforms.rounds.trace import Shapes, trace

Shards = Mapping[int, Arrays]
NAMES = ("payco", "shop", "bank", "carrier")
TRIPLES = {"store": "store"}
"""The `triples` section for the stores that `deal_stores` makes."""
TIMEOUT_S = 300.0
"""Seconds for which a party waits for its peers, where no test wants it to give up: a busy machine may be slow."""
_PORTS = range(10_000, 32_000)
"""Below those that the system gives to outgoing connections."""
_PORT_COUNTER = Path(tempfile.gettempdir()) / f"veilmeans-test-ports-{os.getuid()}"


def free_ports(count: int) -> list[int]:
    """Take ports of this machine on which nobody listens, and which no other test process takes for a long while."""
    ports: list[int] = []
    with _PORT_COUNTER.open("a+") as counter:
        fcntl.flock(counter, fcntl.LOCK_EX)
        counter.seek(0)
        taken = int(counter.read() or 0)
        while len(ports) < count:
            port, taken = _PORTS[taken % len(_PORTS)], taken + 1
            with socket.socket() as listener, suppress(OSError):
                listener.bind(("127.0.0.1", port))
                ports.append(port)
        counter.truncate(0)
        counter.write(str(taken))
    return ports


def make_configs(
    folder: Path, parties: int = 2, kind: str = "gateway", dealer: str | None = None, **fields: Any
) -> dict[str, JobConfig]:
    """Make a configuration, keys and a folder for each party; `fields` are added to every configuration."""
    names = NAMES[:parties]
    members = [*names, *([dealer] if dealer else [])]
    ports = dict(zip(members, free_ports(len(members)), strict=True))
    for name in members:
        make_keys(name, folder / name, days=2)
    exchange = {"kind": kind, "timeout_s": TIMEOUT_S, **fields.pop("exchange", {})}
    return {
        name: JobConfig.model_validate(
            {
                "party": name,
                "run": "test",
                "parties": names,
                "dealer": dealer,
                "certificate": folder / name / f"{name}.crt",
                "key": folder / name / f"{name}.key",
                "seed": folder / name / f"{name}.seed",
                "storage": folder / name / "storage",
                "listen": f"127.0.0.1:{ports[name]}",
                "peers": {
                    peer: {
                        "certificate": folder / peer / f"{peer}.crt",
                        "address": f"127.0.0.1:{ports[peer]}",
                        "outbox": str(folder / peer / "outbox"),
                    }
                    for peer in members
                    if peer != name
                },
                "exchange": {**exchange, "outbox": str(folder / name / "outbox")},
                **fields,
            }
        )
        for name in members
    }


def listens(port: int) -> bool:
    """Return whether anybody listens on a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def write_config(config: JobConfig, file: Path) -> Path:
    """Write a configuration as the YAML file that a party would have."""
    import yaml

    file.write_text(yaml.safe_dump(config.model_dump(mode="json", exclude_none=True), sort_keys=False))
    return file


MANIFEST = Manifest("store", runs=1, iterations=1, rows=0, plan="")


def deal_shards(
    seeds: Sequence[bytes], protocol: Protocol, shards: Sequence[Shards], iteration: int = 0
) -> list[dict[int, Arrays]]:
    """Deal the corrections for shards of these shapes: for each party, shard -> corrections."""
    corrections: list[dict[int, Arrays]] = [{} for _ in seeds]
    for shard in shards[0]:
        shapes = [shapes_of(party[shard]) for party in shards]
        needs = {stage.name: stage.needs for stage in trace(protocol, shapes)}
        dealt = deal_corrections(seeds, MANIFEST.store, 0, Address("", iteration, "", shard), needs)
        for party, received in enumerate(corrections):
            received[shard] = dealt.get(party, {})
    return corrections


PUBLIC = ("shape", "columns")
"""Arrays of a state that are public: they describe shapes."""


def shapes_of(state: Arrays) -> Shapes:
    """Describe a state for a trace."""
    return {k: v if k in PUBLIC else (v.shape, str(v.dtype)) for k, v in state.items()}


@dataclass(frozen=True)
class DealtRun(StoreRun):
    """A run's corrections in memory, by shard."""

    dealt: Shards = field(default_factory=dict)

    def has_corrections(self, iteration: int, shard: int) -> bool:
        return iteration == 0 and shard in self.dealt

    def correction(self, address: Address, label: str) -> Array:
        return self.dealt[address.shard][correction_name(address.stage, label)]


def deal_stores(
    folders: Sequence[StoreFolder], protocol: Protocol, shards: Sequence[Shards], iteration: int = 0
) -> list[StoreRun]:
    """Make every party's triple store as a dealer would for these shapes, claimed by one run."""
    seeds = [prg.derive(b"dealer" + str(folder).encode(), f"party {i}") for i, folder in enumerate(folders)]
    stores = [TripleStore.create(folder, MANIFEST, seed) for folder, seed in zip(folders, seeds, strict=True)]
    for store, dealt in zip(stores, deal_shards(seeds, protocol, shards, iteration), strict=True):
        for shard, arrays in dealt.items():
            store.write_corrections(0, iteration, shard, arrays)
    for store in stores:
        store.complete()
    return [store.claim(0, "test", "test") for store in stores]


def make_shares(values: ring.Ring, parties: int, seed: int = 0) -> list[ring.Ring]:
    """Make A-shares of `values`."""
    rng = np.random.default_rng(seed)
    shares = [rng.integers(0, 2**64, values.shape, np.uint64) for _ in range(parties - 1)]
    return [*shares, values - ring.total(shares)] if shares else [values.copy()]


def share_states(values: Mapping[str, ring.Ring], parties: int) -> list[dict[int, Arrays]]:
    """Make each party's state with its shares of `values`, as shard 0."""
    shares = {name: make_shares(value, parties, seed) for seed, (name, value) in enumerate(values.items())}
    return [{0: {name: share[i] for name, share in shares.items()}} for i in range(parties)]


class InMemoryExchange:
    """An exchange in memory that several threads share; it keeps every message, for tests of the transcript."""

    def __init__(self) -> None:
        self.messages: dict[MessageKey, pa.Buffer] = {}
        self.arrived = threading.Condition()

    def put_all(self, messages: Sequence[Outgoing]) -> None:
        with self.arrived:
            for message in messages:
                known = self.messages.get(message.key)
                if known is not None and not known.equals(message.payload) and not message.replaceable:
                    raise RefusedError(f"two different messages as {message.key}")
                self.messages[message.key] = message.payload
            self.arrived.notify_all()

    def flush(self) -> None: ...

    def get(self, key: MessageKey, timeout: float) -> pa.Buffer:
        with self.arrived:
            if not self.arrived.wait_for(lambda: key in self.messages, timeout):
                raise PeerError(f"no message {key} within {timeout:g} s")
            return self.messages[key]

    def drop_messages(self, run: str, before: int | None = None) -> int:
        del run, before
        return 0

    def forget_refusal(self, run: str) -> None: ...

    def close(self) -> None: ...


def in_parallel(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run one call for each party at the same time; the first error is raised when all have ended."""
    with ThreadPoolExecutor(len(calls)) as pool:
        futures = [pool.submit(call) for call in calls]
    return [future.result() for future in futures]


def run_parties(
    protocol: Protocol, shards: Sequence[Shards], folder: Path
) -> tuple[list[dict[int, Arrays]], InMemoryExchange]:
    """Run `protocol` for all parties on the bare executor; return the final states and all messages.

    Seeds are fresh. The stores would be below `folder`, but stay in memory: a test may run a protocol many times.
    """
    exchange, names = InMemoryExchange(), NAMES[: len(shards)]
    seeds = [os.urandom(32) for _ in names]
    dealt = deal_shards(seeds, protocol, shards)

    def context(i: int) -> OpenPartyContext:
        store = DealtRun(TripleStore(StoreFolder(folder / names[i]), MANIFEST, seeds[i]), 0, dealt[i])
        return OpenPartyContext(
            Party(i, names), "test", 0, exchange, os.urandom(32), store, Scratch("value"), TIMEOUT_S
        )

    states = in_parallel([lambda i=i: run_rounds(protocol, context(i), shards[i]) for i in range(len(names))])
    return states, exchange


def message_arrays(
    protocol: Protocol, shards: Sequence[Shards], folder: Path, runs: int
) -> dict[tuple[str, str, str, str], list[Array]]:
    """Collect every array of every message over many runs, by (stage, sender, recipient, name)."""
    sent: dict[tuple[str, str, str, str], list[Array]] = {}
    for _ in range(runs):
        _, exchange = run_parties(protocol, shards, folder)
        for key, payload in exchange.messages.items():
            for name, array in from_stream(payload).items():
                sent.setdefault((key.address.stage, key.sender, key.recipient, name), []).append(array)
    return sent


def reconstruct(states: Sequence[Mapping[int, Arrays]], shard: int, name: str = "x") -> Array:
    """Rec: add up the parties' shares."""
    return ring.total([state[shard][name] for state in states])


def file_mode(path: Path) -> int:
    """The permission bits of a file."""
    return path.stat().st_mode & 0o777
