"""Cost of a round: milliseconds in all, and where they go. Two processes, mutual TLS, a gateway each, loopback.

A round is one that the product runs: secure multiplication (`primitives.multiply`) on the bare executor, with triples
from a store, through the exchange and gateway of a job. The seconds of a part are those of its own, without those of
the parts that it calls. What the gateway's thread does, the party's own thread waits for: it is shown, and not added.
"""

import multiprocessing
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figures import Figure, parser, publish
from veilmeans.crypto import prg, ring
from veilmeans.io.exchange import exchange as exchange_module
from veilmeans.io.exchange import flight_exchange, flight_gateway, flight_streams, inbox
from veilmeans.io.exchange.connections import open_exchange, running_job
from veilmeans.io.messages.message_log import MessageLog
from veilmeans.io.storage.scratch import VALUE, Scratch
from veilmeans.io.storage.triple_store import Manifest, StoreRun, TripleStore
from veilmeans.pipelines.configure.party_keys import make_keys
from veilmeans.pipelines.local.party_processes import free_ports
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Arrays
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.message import Header
from veilmeans.transforms.offline.dealer import deal_corrections
from veilmeans.transforms.primitives.multiply import MULTIPLY
from veilmeans.transforms.rounds import executor, party_context
from veilmeans.transforms.rounds.executor import StageCosts, run_rounds
from veilmeans.transforms.rounds.party_context import OpenPartyContext
from veilmeans.transforms.rounds.protocol import Protocol
from veilmeans.transforms.rounds.trace import trace

PARTIES = ("payco", "shop")
RUN = "bench"
WARM_UP = 50
TARGET_MS = 0.8
TIMEOUT_S = 60
_FAREWELL_S = 1.0  # seconds for which a party stays, because its peer may still send
_MANIFEST = Manifest("store", runs=1, iterations=2, rows=0, plan="")


class Stopwatch:
    """Seconds of functions by part, without those of the functions that they call; for each kind of thread."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._inner = threading.local()
        self._notified = 0.0

    def time(self, owner: Any, name: str, part: str) -> None:
        """Time the function `owner.name` as `part` from now on."""
        function = getattr(owner, name)

        @wraps(function)
        def timed(*arguments: Any, **named: Any) -> Any:
            outer, start = getattr(self._inner, "seconds", 0.0), time.perf_counter()
            self._inner.seconds = 0.0
            try:
                return function(*arguments, **named)
            finally:
                took = time.perf_counter() - start
                thread = "" if threading.current_thread() is threading.main_thread() else "gateway's thread: "
                self.seconds[thread + part] += took - self._inner.seconds
                self._inner.seconds = outer + took

        setattr(owner, name, timed)

    def time_wake_up(self) -> None:
        """Time from a message's arrival until the thread that waits for it runs."""
        notify, find = inbox.MessageStore.notify, inbox.MessageStore.wait

        def notify_at(store: Any) -> None:
            self._notified = time.perf_counter()
            notify(store)

        def wait(*arguments: Any) -> Any:
            start = time.perf_counter()
            found = find(*arguments)
            if self._notified > start:
                self.seconds["of the wait: wake-up"] += time.perf_counter() - self._notified
            return found

        inbox.MessageStore.notify, inbox.MessageStore.wait = notify_at, wait  # type: ignore[method-assign, assignment]


def instrument(watch: Stopwatch) -> None:
    """Time the parts of a round."""
    watch.time_wake_up()
    watch.time(executor, "send", "computing")
    watch.time(executor, "receive", "computing")
    watch.time(prg, "uniform", "PRG")
    watch.time(exchange_module, "to_stream", "Arrow encoding")
    watch.time(party_context, "read_arrays", "Arrow decoding")
    watch.time(Header, "of", "hashing")
    watch.time(flight_streams.FlightStream, "write", "gRPC send")
    watch.time(flight_exchange.FlightExchange, "put_all", "outbox")
    watch.time(inbox.MessageStore, "wait", "wait for the peer")
    watch.time(inbox.IncomingMessage, "write", "hashing")
    watch.time(MessageLog, "append", "disk")
    watch.time(flight_gateway.PeerStream, "receive", "checking")


def chain(rounds: int) -> Protocol:
    return Protocol("bench", MULTIPLY.rounds * rounds)


def configurations(folder: Path) -> dict[str, JobConfig]:
    """Make keys and a configuration for each party."""
    ports = dict(zip(PARTIES, free_ports(2), strict=True))
    for name in PARTIES:
        make_keys(name, folder / name, days=2)
    return {name: JobConfig.model_validate(_fields(folder, name, ports)) for name in PARTIES}


def _fields(folder: Path, name: str, ports: dict[str, int]) -> dict[str, Any]:
    (peer,) = (other for other in PARTIES if other != name)
    return {
        "party": name,
        "run": RUN,
        "parties": list(PARTIES),
        "certificate": folder / name / f"{name}.crt",
        "key": folder / name / f"{name}.key",
        "seed": folder / name / f"{name}.seed",
        "storage": folder / name / "storage",
        "listen": f"127.0.0.1:{ports[name]}",
        "peers": {peer: {"certificate": folder / peer / f"{peer}.crt", "address": f"127.0.0.1:{ports[peer]}"}},
        "exchange": {"kind": "gateway", "timeout_s": TIMEOUT_S},
        "gateway": "embedded",
        "triples": {"store": "bench", "runs": 1},
    }


def deal(configs: Sequence[JobConfig], rounds: Sequence[int], rows: int) -> None:
    """Write each party's triple store, for an iteration of so many rounds each."""
    seeds = [bytes([i + 1]) * prg.SEED_SIZE for i in range(len(configs))]
    stores = [TripleStore.create(each.store_folder, _MANIFEST, seed) for each, seed in zip(configs, seeds, strict=True)]
    shapes = dict.fromkeys("xy", ((rows,), "uint64"))
    for iteration, count in enumerate(rounds):
        needs = {stage.name: stage.needs for stage in trace(chain(count), [shapes] * len(configs))}
        dealt = deal_corrections(seeds, _MANIFEST.store, 0, Address("", iteration, "", 0), needs)
        for index, store in enumerate(stores):
            store.write_corrections(0, iteration, 0, dealt.get(index, {}))
    for store in stores:
        store.complete()


def run_party(config: JobConfig, rounds: int, rows: int, parts: bool, answers: Any) -> None:
    """Run the rounds in this process; answer milliseconds a round, in all and by part."""
    watch, costs = Stopwatch(), StageCosts()
    rng = np.random.default_rng(config.me.index)
    state: dict[int, Arrays] = {0: {name: rng.integers(0, 2**64, rows, ring.DTYPE) for name in "xy"}}
    store = StoreRun(TripleStore.open(config.store_folder), 0)
    with running_job(config):
        exchange = open_exchange(config)
        context = OpenPartyContext(config.me, RUN, 0, exchange, bytes(32), store, Scratch(VALUE), float(TIMEOUT_S))
        run_rounds(chain(WARM_UP), context, state)
        exchange.flush()
        if parts:
            instrument(watch)
        start, cpu = time.perf_counter(), time.process_time()
        run_rounds(chain(rounds), replace(context, iteration=1), state, costs)
        exchange.flush()
        seconds = {"in all": time.perf_counter() - start, "processor's time": time.process_time() - cpu}
        answers.put({part: value / rounds * 1e3 for part, value in {**seconds, **watch.seconds}.items()})
        time.sleep(_FAREWELL_S)


def measure(rounds: int, rows: int, parts: bool) -> dict[str, float]:
    """Milliseconds a round, by part; the mean of both parties."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="veilmeans-bench-") as name:
        configs = list(configurations(Path(name)).values())
        deal(configs, (WARM_UP, rounds), rows)
        answers = context.Queue()
        processes = [
            context.Process(target=run_party, args=(config, rounds, rows, parts, answers)) for config in configs
        ]
        for process in processes:
            process.start()
        measured = [answers.get(timeout=600) for _ in processes]
        for process in processes:
            process.join()
    return {part: float(np.mean([each.get(part, 0.0) for each in measured])) for part in measured[0] | measured[1]}


def figures(rounds: int, rows: int) -> list[Figure]:
    """Measure twice: undisturbed, and with every part timed."""
    label = f"{rows * 16 / 1e3:,.0f} kB"
    whole = measure(rounds, rows, parts=False)
    split = measure(rounds, rows, parts=True)
    in_all = Figure.at_most(f"{label}: a round in all", whole["in all"], "ms", TARGET_MS)
    cpu = Figure(f"{label}: a party's processor time", whole["processor's time"], "ms")
    timed = [Figure(f"{label}, timed: {part}", split[part], "ms") for part in sorted(split)]
    return [in_all, cpu, *timed]


def main() -> None:
    command = parser(__doc__)
    command.add_argument("--rounds", type=int, default=400)
    command.add_argument("--rows", type=int, nargs="*", default=[60, 4000], help="of a message of 16 bytes a row")
    arguments = command.parse_args()
    publish([each for rows in arguments.rows for each in figures(arguments.rounds, rows)], arguments.json)


if __name__ == "__main__":
    from benchmarks import round_cost

    round_cost.main()
