"""Mischief for tests: exchanges that disturb, a scene to play it in, parties as processes that can be killed.

python chain_party.py CONFIG --chaos 7 --strike 3:send:die      the flags are read by `add_flags` and `disturb`
"""

import argparse
import json
import multiprocessing
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight

from support.chain_party import chain, write_inputs
from support.parties import TRIPLES, Board, deal_stores, in_parallel, make_configs, split, write_config
from veilmeans.crypto.certificates import Identity
from veilmeans.io.exchange.connections import close_exchange, load_identity, open_exchange, open_gateway
from veilmeans.io.exchange.exchange import Exchange, Outgoing
from veilmeans.io.exchange.flight_exchange import Endpoint, FlightExchange
from veilmeans.io.exchange.flight_streams import PART_SCHEMA
from veilmeans.io.exchange.flight_streams import split as in_parts
from veilmeans.io.storage.scratch import VALUE, Scratch
from veilmeans.io.storage.triple_store import StoreRun
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Arrays
from veilmeans.schemas.config import JobConfig, load_config
from veilmeans.schemas.message import Header, MessageKey
from veilmeans.transforms.rounds import party_context as seat_module
from veilmeans.transforms.rounds.executor import run_bare
from veilmeans.transforms.rounds.party_context import OpenPartyContext, PartyContext

HERE = Path(__file__).parent
ROUNDS, SHARDS = 6, 3
PATIENCE = 60.0
"""Seconds after which a test gives up waiting: an upper bound, not a measure."""
PRELOADED = [
    "chaos",
    "veilmeans.pipelines.cli.main",
    "veilmeans.pipelines.offline",
    "veilmeans.pipelines.reporting.html_report",
    "veilmeans.pipelines.reveal",
    "veilmeans.pipelines.predict",
    "veilmeans.pipelines.sums",
    "veilmeans.pipelines.train",
    "apache_beam.runners.portability.fn_api_runner.fn_runner",
    "frozen",
]
"""What the server of processes imports, once for all of them: also what a command imports only when it needs it."""


class Through:
    """An exchange that hands everything on; the others override what they disturb."""

    def __init__(self, inner: Exchange) -> None:
        self.inner = inner

    def put_all(self, messages: Sequence[Outgoing]) -> None:
        self.inner.put_all(messages)

    def get(self, key: MessageKey, timeout: float) -> pa.Buffer:
        return self.inner.get(key, timeout)

    def collect(self, run: str, before: int | None = None) -> int:
        return self.inner.collect(run, before)

    def forget_refusal(self, run: str) -> None:
        self.inner.forget_refusal(run)

    def close(self) -> None:
        self.inner.close()


class ChaosExchange(Through):
    """Sends every message twice, one by one, late and in any order, and now and then one of an earlier round again."""

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
class Moment:
    """A half of a round, "3:send", and what happens there once: "die", "fail" or "hold"."""

    round: int
    half: str
    what: str

    @classmethod
    def parse(cls, text: str) -> "Moment":
        round_, half, what = text.split(":")
        return cls(int(round_), half, what)

    def mark(self, marks: Path) -> Path:
        return marks / f"struck-{self.round}-{self.half}-{self.what}"

    def strike(self, marks: Path) -> None:
        self.mark(marks).touch()
        if self.what == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.what == "fail":
            raise RuntimeError(f"struck at {self.round}:{self.half}")
        wait_for(lambda: (marks / "go-on").exists())


class StruckExchange(Through):
    """Struck at given moments: a "send" when half of a round's messages are out, a "receive" when one has come in.

    `marks` is a folder: what has happened is remembered there, so that the same command goes on the next time.
    """

    def __init__(self, inner: Exchange, moments: Sequence[Moment], marks: Path) -> None:
        super().__init__(inner)
        self.moments, self.marks = moments, marks

    def put_all(self, messages: Sequence[Outgoing]) -> None:
        moment = self._due(messages[0].key, "send") if messages else None
        if moment is not None:
            self.inner.put_all(messages[: len(messages) // 2])
            moment.strike(self.marks)
        self.inner.put_all(messages)

    def get(self, key: MessageKey, timeout: float) -> pa.Buffer:
        payload = self.inner.get(key, timeout)
        moment = self._due(key, "receive")
        if moment is not None:
            moment.strike(self.marks)
        return payload

    def _due(self, key: MessageKey, half: str) -> Moment | None:
        number = round_of(key)
        due = [m for m in self.moments if (m.round, m.half) == (number, half) and not m.mark(self.marks).exists()]
        return due[0] if due else None


class At(Through):
    """Does something once, when this party is about to send its messages of round `number`."""

    def __init__(self, inner: Exchange, number: int, what: Callable[[Exchange, Sequence[Outgoing]], object]) -> None:
        super().__init__(inner)
        self.number, self.what = number, what

    def put_all(self, messages: Sequence[Outgoing]) -> None:
        if round_of(messages[0].key) == self.number:
            self.what(self.inner, messages)
        self.inner.put_all(messages)


def round_of(key: MessageKey) -> int | None:
    """The number of a chain's round; None for handshake and farewell."""
    number = key.address.stage.split(".")[1:2]
    return int(number[0]) if number else None


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--chaos", type=int, metavar="SEED", help="duplicate, delay and reorder messages")
    parser.add_argument("--strike", type=Moment.parse, action="append", default=[], help="ROUND:send|receive:die|fail")


def disturb(arguments: argparse.Namespace, marks: Path) -> None:
    """From now on every seat that this process opens has its exchange disturbed as the flags say."""
    if arguments.chaos is None and not arguments.strike:
        return
    wrapped: dict[int, Exchange] = {}

    def opened(config: JobConfig) -> Exchange:
        exchange = open_exchange(config)
        if id(exchange) not in wrapped:
            chaotic = exchange if arguments.chaos is None else ChaosExchange(exchange, arguments.chaos)
            wrapped[id(exchange)] = StruckExchange(chaotic, arguments.strike, marks)
        return wrapped[id(exchange)]

    seat_module.open_exchange = opened  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Scene:
    """Parties with keys, data and triples, and the shares that an undisturbed run gives each of them."""

    folder: Path
    configs: Mapping[str, JobConfig]
    held: Sequence[Mapping[int, Arrays]]
    expected: Sequence[Mapping[int, Arrays]]

    def file(self, name: str) -> Path:
        return self.folder / f"{name}.yaml"

    def check(self, outputs: Sequence[Mapping[int, Arrays]]) -> None:
        """The shares, not only the values, are those of the undisturbed run, bit for bit."""
        for expected, output in zip(self.expected, outputs, strict=True):
            assert output.keys() == expected.keys()
            for shard, state in expected.items():
                np.testing.assert_array_equal(output[shard]["x"], state["x"])


def make_scene(folder: Path, kind: str, parties: int = 2, timeout: float = 30.0, **fields: object) -> Scene:
    configs = make_configs(
        folder, parties, kind, exchange={"timeout_s": timeout, "max_message_mb": 64}, triples=TRIPLES, **fields
    )
    held: list[dict[int, Arrays]] = [{} for _ in range(parties)]
    rng = np.random.default_rng(5)
    for shard in range(SHARDS):
        x, y = (split(rng.integers(0, 2**64, (4 + shard, 2), np.uint64), parties, shard) for _ in "xy")
        for i in range(parties):
            held[i][shard] = {"x": x[i], "y": y[i]}
    stores = deal_stores([config.store_folder for config in configs.values()], chain(ROUNDS), held)
    for config, shards in zip(configs.values(), held, strict=True):
        write_config(config, folder / f"{config.party}.yaml")
        write_inputs(config, shards)
    board = Board()
    contexts = [_on_board(config, board, store) for config, store in zip(configs.values(), stores, strict=True)]
    return Scene(folder, configs, held, _all_rounds(contexts, held))


def _on_board(config: JobConfig, board: Board, store: StoreRun) -> OpenPartyContext:
    return OpenPartyContext(config.me, config.run, 0, board, b"unused", store, Scratch(VALUE), 10.0)


def _all_rounds(contexts: Sequence[OpenPartyContext], held: Sequence[Mapping[int, Arrays]]) -> list[dict[int, Arrays]]:
    return in_parallel([lambda i=i: run_bare(chain(ROUNDS), contexts[i], held[i]) for i in range(len(contexts))])


@contextmanager
def open_exchanges(scene: Scene) -> Iterator[dict[str, Exchange]]:
    """Everyone's exchange in this process, with gateways if the configurations want them."""
    with ExitStack() as stack:
        for config in scene.configs.values():
            if config.exchange.kind == "gateway":
                stack.enter_context(open_gateway(config))
        for config in scene.configs.values():
            stack.callback(close_exchange, config)
        yield {name: open_exchange(config) for name, config in scene.configs.items()}


def play(scene: Scene, disturbed: Mapping[str, Callable[[Exchange], Exchange]]) -> list[dict[int, Arrays]]:
    """All rounds in this process, over real exchanges; some parties' are disturbed."""
    with open_exchanges(scene) as exchanges:
        contexts = [
            replace(
                PartyContext(config, "chain", store_number=0).open(),
                exchange=disturbed.get(name, Through)(exchanges[name]),
            )
            for name, config in scene.configs.items()
        ]
        return _all_rounds(contexts, scene.held)


def message(
    run: str = "test", iteration: int = 0, number: int = 0, sender: str = "shop", to: str = "payco"
) -> Outgoing:
    """A message such as a chain sends."""
    key = MessageKey(Address(run, iteration, f"chain.{number:02d}.multiply", 0), sender, to)
    return Outgoing.of(key, {"e": np.arange(40, dtype=np.uint64), "f": np.arange(40, dtype=np.uint64)})


def raw_client(owner: JobConfig, identity: Identity | None) -> flight.FlightClient:
    """A client that knows nothing of our rules, at the gateway of `owner`."""
    shown = {} if identity is None else {"cert_chain": identity.certificate, "private_key": identity.key}
    return flight.FlightClient(
        f"grpc+tls://{owner.listen}",
        tls_root_certs=owner.certificate.read_bytes(),
        override_hostname=owner.party,
        **shown,
    )


def exchange_of_shop(scene: Scene, timeout: float = 3.0) -> FlightExchange:
    """Shop's exchange with payco, with no limit of its own."""
    shop, owner = scene.configs["shop"], scene.configs["payco"]
    doors = {"payco": Endpoint("payco", owner.listen or "", owner.certificate.read_bytes())}
    own = Endpoint("shop", shop.listen or "", shop.certificate.read_bytes())
    return FlightExchange(own, doors, load_identity(shop), 1 << 40, timeout)


Part = tuple[pa.RecordBatch, bytes | None]


def label(key: MessageKey, header: Header, /, **other: object) -> bytes:
    """What opens a message on the wire; `other` fields replace the right ones."""
    return json.dumps({"key": key.to_json(), "size": header.size, "sha256": header.digest.hex(), **other}).encode()


def parts_of(sent: Outgoing, header: Header | None = None) -> list[Part]:
    """A message as the wire wants it, under any header."""
    first, *others = in_parts(sent.payload)
    return [(first, label(sent.key, header or Header.of(sent.payload))), *((part, b"{}") for part in others)]


def send_raw(client: flight.FlightClient, parts: Sequence[Part], schema: pa.Schema = PART_SCHEMA) -> int:
    """Put these very parts; how many messages the gateway says it stored."""
    options = flight.FlightCallOptions(timeout=PATIENCE)
    writer, answers = client.do_put(flight.FlightDescriptor.for_command(b"put"), schema, options)
    with writer:
        for batch, metadata in parts:
            if metadata is None:
                writer.write_batch(batch)
            else:
                writer.write_with_metadata(batch, pa.py_buffer(metadata))
        writer.done_writing()
        stored = 0
        while (answer := answers.read()) is not None:
            stored = int(answer.to_pybytes())
        return stored


class Party:
    """One party of a scene as a process of its own, started with the same command as often as one likes.

    The process is forked from a server that has imported everything: a start takes no seconds, and it is still one
    that SIGKILL ends with all its threads.
    """

    def __init__(self, scene: Scene, name: str, *flags: str) -> None:
        self.log = scene.folder / f"{name}.log"
        self._arguments = [str(scene.file(name)), "--rounds", str(ROUNDS), "--executor", "bare", *flags]

    def start(self) -> "Party":
        self.process = in_a_process(run_chain_party, self._arguments, self.log)
        return self

    def wait(self) -> int:
        """The exit code; a process that does not end is killed, and that is an error."""
        self.process.join(PATIENCE)
        if self.process.exitcode is None:
            self.process.kill()
            raise AssertionError(f"still running after {PATIENCE:g} s: {self.said()}")
        return self.process.exitcode

    def said(self) -> str:
        return self.log.read_text()


def in_a_process(target: Callable[..., object], *arguments: object) -> BaseProcess:
    context = multiprocessing.get_context("forkserver")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(path if str(HERE) in path else [str(HERE), *path])
    context.set_forkserver_preload(PRELOADED)
    process = context.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def send_half(to: Path, sender: Path, key: MessageKey, payload: bytes) -> None:
    """Send the first part of a message of several parts, then sit there."""
    client = raw_client(load_config(to), load_identity(load_config(sender)))
    writer, _ = client.do_put(flight.FlightDescriptor.for_command(b"put"), PART_SCHEMA)
    batch, metadata = parts_of(Outgoing(key, pa.py_buffer(payload)))[0]
    writer.write_with_metadata(batch, pa.py_buffer(metadata or b""))
    time.sleep(PATIENCE)


def run_chain_party(arguments: list[str], log: Path) -> None:
    """`chain_party.py` with these arguments, in a process of its own."""
    from support.chain_party import main

    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.argv = ["chain_party.py", *arguments]
    main()


def wait_for(true: Callable[[], bool], seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
