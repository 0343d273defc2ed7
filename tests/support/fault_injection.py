"""Faults for tests: exchanges that disturb messages, parties of a chain of products, processes that can be killed.

python chain_party.py CONFIG --disorder 7 --fault 3:send:die      the flags are read by `add_flags` and `apply_faults`
"""

import argparse
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight

from support.chain_party import chain, write_inputs
from support.parties import (
    TIMEOUT_S,
    TRIPLES,
    InMemoryExchange,
    deal_stores,
    in_parallel,
    make_configs,
    make_shares,
    write_config,
)
from support.raw_messages import PATIENCE, parts_of, raw_client
from veilmeans.io.exchange.connections import close_exchange, load_identity, open_exchange, open_gateway
from veilmeans.io.exchange.exchange import Exchange, Outgoing
from veilmeans.io.exchange.flight_exchange import Endpoint, FlightExchange
from veilmeans.io.exchange.flight_streams import PART_SCHEMA
from veilmeans.io.exchange.inbox import SmallMessage
from veilmeans.io.messages.message_log import MessageLog
from veilmeans.io.storage.scratch import VALUE, Scratch
from veilmeans.io.storage.triple_store import StoreRun
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Arrays
from veilmeans.schemas.config import JobConfig, load_config
from veilmeans.schemas.message import MessageKey
from veilmeans.transforms.rounds import party_context
from veilmeans.transforms.rounds.executor import run_rounds
from veilmeans.transforms.rounds.party_context import OpenPartyContext, PartyContext

TESTS = Path(__file__).parents[1]
ROUNDS, SHARDS = 6, 3
PRELOADED = [
    "support.fault_injection",
    "veilmeans.pipelines.cli.main",
    "veilmeans.pipelines.offline",
    "veilmeans.pipelines.reporting.html_report",
    "veilmeans.pipelines.reveal",
    "veilmeans.pipelines.predict",
    "veilmeans.pipelines.train",
    "apache_beam.runners.portability.fn_api_runner.fn_runner",
    "support.gc_freeze",
]
"""What the server of processes imports, once for all of them: also what a command imports only when it needs it."""


class ForwardingExchange:
    """An exchange that forwards every call; subclasses override the calls that they disturb."""

    def __init__(self, inner: Exchange) -> None:
        self.inner = inner

    def put_all(self, messages: Sequence[Outgoing]) -> None:
        self.inner.put_all(messages)

    def flush(self) -> None:
        self.inner.flush()

    def get(self, key: MessageKey, timeout: float) -> pa.Buffer:
        return self.inner.get(key, timeout)

    def drop_messages(self, run: str, before: int | None = None) -> int:
        return self.inner.drop_messages(run, before)

    def forget_refusal(self, run: str) -> None:
        self.inner.forget_refusal(run)

    def close(self) -> None:
        self.inner.close()


class DisorderedExchange(ForwardingExchange):
    """An exchange that sends every message twice, late and in any order, and sometimes an old one again."""

    def __init__(self, inner: Exchange, seed: int, longest_delay: float = 0.02) -> None:
        super().__init__(inner)
        self.random, self.longest_delay = random.Random(seed), longest_delay
        self.sent: list[Outgoing] = []

    def put_all(self, messages: Sequence[Outgoing]) -> None:
        again = self.random.sample(self.sent, min(len(self.sent), 2))
        self.sent += messages
        for message in self.random.sample([*messages, *messages, *again], 2 * len(messages) + len(again)):
            time.sleep(self.random.uniform(0, self.longest_delay))
            self.inner.put_all([message])


@dataclass(frozen=True)
class Fault:
    """A fault that happens once, in half of a round ("3:send"): the process dies, fails, or is inputs ("hold")."""

    round: int
    half: str
    what: str

    @classmethod
    def parse(cls, text: str) -> "Fault":
        """Parse a flag such as 3:send:die."""
        round_, half, what = text.split(":")
        return cls(int(round_), half, what)

    def mark(self, marks: Path) -> Path:
        """The file that records that the fault has happened."""
        return marks / f"fault-{self.round}-{self.half}-{self.what}"

    def happen(self, marks: Path) -> None:
        """Record the fault, then die, fail, or wait for the file "continue"."""
        self.mark(marks).touch()
        if self.what == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.what == "fail":
            raise RuntimeError(f"fault at {self.round}:{self.half}")
        wait_for(lambda: (marks / "continue").exists())


class FaultyExchange(ForwardingExchange):
    """An exchange with faults: at "send" when half of a round's messages are sent, at "receive" when one has arrived.

    `marks` is a folder that records the faults, so that each happens once though the command is rerun.
    """

    def __init__(self, inner: Exchange, faults: Sequence[Fault], marks: Path) -> None:
        super().__init__(inner)
        self.faults, self.marks = faults, marks

    def put_all(self, messages: Sequence[Outgoing]) -> None:
        fault = self._due(messages[0].key, "send") if messages else None
        if fault is not None:
            self.inner.put_all(messages[: len(messages) // 2])
            fault.happen(self.marks)
        self.inner.put_all(messages)

    def get(self, key: MessageKey, timeout: float) -> pa.Buffer:
        payload = self.inner.get(key, timeout)
        fault = self._due(key, "receive")
        if fault is not None:
            fault.happen(self.marks)
        return payload

    def _due(self, key: MessageKey, half: str) -> Fault | None:
        number = round_of(key)
        here = [each for each in self.faults if (each.round, each.half) == (number, half)]
        return next((each for each in here if not each.mark(self.marks).exists()), None)


class ActionAtRound(ForwardingExchange):
    """An exchange that calls `action` once, just before this party sends its messages of round `number`."""

    def __init__(self, inner: Exchange, number: int, action: Callable[[Exchange, Sequence[Outgoing]], object]) -> None:
        super().__init__(inner)
        self.number, self.action = number, action

    def put_all(self, messages: Sequence[Outgoing]) -> None:
        if round_of(messages[0].key) == self.number:
            self.action(self.inner, messages)
        self.inner.put_all(messages)


def round_of(key: MessageKey) -> int | None:
    """Return the number of a chain's round; None for handshake and farewell."""
    number = key.address.stage.split(".")[1:2]
    return int(number[0]) if number else None


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that `apply_faults` reads."""
    parser.add_argument("--disorder", type=int, metavar="SEED", help="duplicate, delay and reorder messages")
    parser.add_argument(
        "--fault", type=Fault.parse, action="append", default=[], help="ROUND:send|receive|arrive|store:die|fail"
    )


def apply_faults(arguments: argparse.Namespace, marks: Path) -> None:
    """Disturb, as the flags say, every exchange that this process opens from now on."""
    if arguments.disorder is None and not arguments.fault:
        return
    wrapped: dict[int, Exchange] = {}

    def open_faulty(config: JobConfig) -> Exchange:
        exchange = open_exchange(config)
        if id(exchange) not in wrapped:
            inner = exchange if arguments.disorder is None else DisorderedExchange(exchange, arguments.disorder)
            wrapped[id(exchange)] = FaultyExchange(inner, arguments.fault, marks)
        return wrapped[id(exchange)]

    party_context.open_exchange = open_faulty  # type: ignore[attr-defined]
    _strike_gateway([fault for fault in arguments.fault if fault.half in ("arrive", "store")], marks)


def _strike_gateway(faults: Sequence[Fault], marks: Path) -> None:
    """Let faults happen in this process's gateway: before or after a message is stored, not acknowledged."""
    commit = SmallMessage.commit

    def strike(key: MessageKey, half: str) -> None:
        for fault in faults:
            if (fault.round, fault.half) == (round_of(key), half) and not fault.mark(marks).exists():
                fault.happen(marks)

    def faulty(message: SmallMessage) -> None:
        strike(message._key, "arrive")
        commit(message)
        strike(message._key, "store")

    SmallMessage.commit = faulty  # type: ignore[method-assign]


@dataclass(frozen=True)
class ChainWorld:
    """The parties of a chain of products, with keys, data and triples, and their shares after a run without faults."""

    folder: Path
    configs: Mapping[str, JobConfig]
    inputs: Sequence[Mapping[int, Arrays]]
    expected: Sequence[Mapping[int, Arrays]]

    def file(self, name: str) -> Path:
        """The configuration file of a party."""
        return self.folder / f"{name}.yaml"

    def check(self, outputs: Sequence[Mapping[int, Arrays]]) -> None:
        """Check that the shares, not only the values, are those of a run without faults, bit for bit."""
        for expected, output in zip(self.expected, outputs, strict=True):
            assert output.keys() == expected.keys()
            for shard, state in expected.items():
                np.testing.assert_array_equal(output[shard]["x"], state["x"])


def make_chain_world(
    folder: Path, kind: str, parties: int = 2, timeout: float = TIMEOUT_S, **fields: object
) -> ChainWorld:
    """Make the parties of a chain whose messages travel by `kind` ("gateway" or "files")."""
    configs = make_configs(
        folder, parties, kind, exchange={"timeout_s": timeout, "max_message_mb": 64}, triples=TRIPLES, **fields
    )
    inputs: list[dict[int, Arrays]] = [{} for _ in range(parties)]
    rng = np.random.default_rng(5)
    for shard in range(SHARDS):
        x, y = (make_shares(rng.integers(0, 2**64, (4 + shard, 2), np.uint64), parties, shard) for _ in "xy")
        for i in range(parties):
            inputs[i][shard] = {"x": x[i], "y": y[i]}
    stores = deal_stores([config.store_folder for config in configs.values()], chain(ROUNDS), inputs)
    for config, shards in zip(configs.values(), inputs, strict=True):
        write_config(config, folder / f"{config.party}.yaml")
        write_inputs(config, shards)
    exchange = InMemoryExchange()
    contexts = [_in_memory(config, exchange, store) for config, store in zip(configs.values(), stores, strict=True)]
    return ChainWorld(folder, configs, inputs, _all_rounds(contexts, inputs))


def _in_memory(config: JobConfig, exchange: InMemoryExchange, store: StoreRun) -> OpenPartyContext:
    return OpenPartyContext(config.me, config.run, 0, exchange, b"unused", store, Scratch(VALUE), TIMEOUT_S)


def _all_rounds(
    contexts: Sequence[OpenPartyContext], inputs: Sequence[Mapping[int, Arrays]]
) -> list[dict[int, Arrays]]:
    return in_parallel([lambda i=i: run_rounds(chain(ROUNDS), contexts[i], inputs[i]) for i in range(len(contexts))])


@contextmanager
def open_exchanges(world: ChainWorld) -> Iterator[dict[str, Exchange]]:
    """Open all parties' exchanges in this process, with gateways if the configurations say so."""
    with ExitStack() as stack:
        for config in world.configs.values():
            if config.exchange.kind == "gateway":
                stack.enter_context(open_gateway(config))
        for config in world.configs.values():
            stack.callback(close_exchange, config)
        yield {name: open_exchange(config) for name, config in world.configs.items()}


def run_in_process(
    world: ChainWorld, disturbed: Mapping[str, Callable[[Exchange], Exchange]]
) -> list[dict[int, Arrays]]:
    """Run all rounds in this process, over real exchanges, of which some are disturbed."""
    with open_exchanges(world) as exchanges:
        contexts = [
            replace(
                PartyContext(config, "chain", store_number=0).open(),
                exchange=disturbed.get(name, ForwardingExchange)(exchanges[name]),
            )
            for name, config in world.configs.items()
        ]
        return _all_rounds(contexts, world.inputs)


def chain_message(
    run: str = "test", iteration: int = 0, number: int = 0, sender: str = "shop", to: str = "payco"
) -> Outgoing:
    """Make a message such as a chain sends."""
    key = MessageKey(Address(run, iteration, f"chain.{number:02d}.multiply", 0), sender, to)
    return Outgoing.of(key, {"e": np.arange(40, dtype=np.uint64), "f": np.arange(40, dtype=np.uint64)})


def stored_messages(folder: Path) -> list[str]:
    """The paths (`MessageKey.path`) of all messages below an inbox or outbox: in files and in logs."""
    logs = [MessageLog(file) for file in folder.rglob("*.log")]
    inbox = next((each for each in (folder, *folder.parents) if each.name == "inbox"), folder)
    inside = "".join(f"{part}/" for part in folder.relative_to(inbox).parts)
    in_logs = [key.path.removeprefix(inside) for log in logs for key in log.keys()]  # noqa: SIM118
    return sorted([*in_logs, *(str(file.relative_to(folder)) for file in folder.rglob("*.msg"))])


def shop_exchange(world: ChainWorld, timeout: float = TIMEOUT_S, late: bool = False) -> FlightExchange:
    """Make shop's exchange with payco, without a limit on the size of messages; `late`: as in the process of a job."""
    shop, owner = world.configs["shop"], world.configs["payco"]
    peers = {"payco": Endpoint("payco", owner.listen or "", owner.certificate.read_bytes())}
    own = Endpoint("shop", shop.listen or "", shop.certificate.read_bytes())
    return FlightExchange(own, peers, load_identity(shop), 1 << 40, timeout, late=late)


class PartyProcess:
    """One party of a chain as a process of its own, which may be started many times with the same command.

    The process is forked from a server that has imported everything, so it starts at once; SIGKILL ends it with all its
    threads.
    """

    def __init__(self, world: ChainWorld, name: str, *flags: str) -> None:
        self.log = world.folder / f"{name}.log"
        self._arguments = [str(world.file(name)), "--rounds", str(ROUNDS), "--executor", "bare", *flags]

    def start(self) -> "PartyProcess":
        """Start the process."""
        self.process = start_process(run_chain_party, self._arguments, self.log)
        return self

    def wait(self) -> int:
        """Wait for the exit code; a process that does not end is killed, and the test fails."""
        code = exit_code(self.process, PATIENCE)
        if code is None:
            self.process.kill()
            raise AssertionError(f"still running after {PATIENCE:g} s: {self.output()}")
        return code

    def output(self) -> str:
        """Return all that the process has printed."""
        return self.log.read_text()


_collecting = threading.Lock()
"""Held while exit codes are collected, also by starting a process: two threads must not collect the same one."""


def exit_code(process: BaseProcess, patience: float) -> int | None:
    """Wait for the exit code of a process; None if it is still running."""
    connection.wait([process.sentinel], patience)
    with _collecting:
        return process.exitcode


def start_process(target: Callable[..., object], *arguments: object) -> BaseProcess:
    """Call `target` in a process that is forked from a server that has imported everything."""
    context = multiprocessing.get_context("forkserver")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(path if str(TESTS) in path else [str(TESTS), *path])
    context.set_forkserver_preload(PRELOADED)
    process = context.Process(target=target, args=arguments, daemon=True)
    with _collecting:
        process.start()
    return process


def send_first_part(to: Path, sender: Path, key: MessageKey, payload: bytes) -> None:
    """Send the first part of a message of several parts, then keep the stream open."""
    client = raw_client(load_config(to), load_identity(load_config(sender)))
    writer, _ = client.do_put(flight.FlightDescriptor.for_command(b"put"), PART_SCHEMA)
    batch, metadata = parts_of(Outgoing(key, pa.py_buffer(payload)))[0]
    writer.write_with_metadata(batch, pa.py_buffer(metadata or b""))
    time.sleep(PATIENCE)


def run_chain_party(arguments: list[str], log: Path) -> None:
    """Run `chain_party.py` with these arguments in this process."""
    from support.chain_party import main

    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.argv = ["chain_party.py", *arguments]
    main()


def wait_for(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait until a condition holds; the test fails if it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not hold in time"
        time.sleep(0.01)


def files_below(folder: Path) -> list[str]:
    """List all files below a folder, by their paths from it."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
