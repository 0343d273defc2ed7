"""What a run will do and cost at one party, as plain data: the answer of `veilmeans plan`, and its JSON.

`JobPlan.to_json` has these fields; names stay as they are, and new ones may come beside them. Bytes are those of
message payloads as they are sent (Arrow IPC streams), which `report.json` of a run counts, too; handshake, farewell,
envelopes (64 bytes a message) and TLS come on top. Seconds are estimates; all else is exact, unless it says otherwise,
and but for the lengths of column names, which `columns: all` opens with the centroids.

  party, run, peers   whose plan it is
  job                 layout, rows, columns, clusters, model (of a prediction), max_iter, tol, shards, column_shards,
                      runner, rounds ("whole": one call an iteration; "stages": a Beam stage for each round),
                      compare_bits, compared_bits
  links               name -> rate_mbps, round_trip_ms
  steps               in the order in which they run:
                      name, does, phase (S1, S2, S3 or ""), over ("rows", "columns", "one"), when ("once", "iteration",
                      "end"), after (names of steps), times (at most),
                      each (rounds, messages, bytes_sent, bytes_received, sent and received by peer), of one time,
                      total (the same, of all times), seconds (computed, and by link, of one time)
  iteration, total    traffic (as `each`) and seconds of one iteration, and of all that a run does at most
  offline             runs, iterations, dealer, bytes_received, messages, triples (kind, unit, count), ciphertexts,
                      cipher_bytes, bytes_stored (files of the store); all of it for the whole store
  disk                store, prepared (estimated), checkpoints, operands, inbox (peak, estimated), total; in bytes
  engines             party, product, engine, asked, why, estimates (engine -> seconds, bytes, offline_seconds,
                      offline_bytes, why; of one iteration)
  opened              what, to (names), when ("before", "iteration", "end")
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from veilmeans.transforms.kmeans.steps import Step

Json = dict[str, Any]


@dataclass(frozen=True)
class Traffic:
    """What crosses between one party and its peers: rounds in which it takes part, messages that it sends, bytes."""

    rounds: int = 0
    messages: int = 0
    sent: Mapping[str, int] = field(default_factory=dict)
    received: Mapping[str, int] = field(default_factory=dict)

    @property
    def bytes_sent(self) -> int:
        return sum(self.sent.values())

    @property
    def bytes_received(self) -> int:
        return sum(self.received.values())

    def __add__(self, other: "Traffic") -> "Traffic":
        sent, received = (
            dict(Counter(mine) + Counter(more))
            for mine, more in ((self.sent, other.sent), (self.received, other.received))
        )
        return Traffic(self.rounds + other.rounds, self.messages + other.messages, sent, received)

    def __mul__(self, times: int) -> "Traffic":
        sent, received = ({peer: times * n for peer, n in each.items()} for each in (self.sent, self.received))
        return Traffic(times * self.rounds, times * self.messages, sent, received)

    def to_json(self) -> Json:
        return {
            "rounds": self.rounds,
            "messages": self.messages,
            "bytes_sent": self.bytes_sent,
            "bytes_received": self.bytes_received,
            "sent": dict(self.sent),
            "received": dict(self.received),
        }


@dataclass(frozen=True)
class Seconds:
    """Computing, and computing and waiting on each link; estimates."""

    computed: float = 0.0
    links: Mapping[str, float] = field(default_factory=dict)

    def __add__(self, other: "Seconds") -> "Seconds":
        names = {**self.links, **other.links}
        links = {name: self.links.get(name, 0.0) + other.links.get(name, 0.0) for name in names}
        return Seconds(self.computed + other.computed, links)

    def __mul__(self, times: int) -> "Seconds":
        return Seconds(times * self.computed, {name: times * value for name, value in self.links.items()})

    def to_json(self) -> Json:
        return {"computed": self.computed, **self.links}


@dataclass(frozen=True)
class StepPlan:
    """One step of the graph: what it moves and takes each time, and how often it is done at most."""

    step: Step
    times: int
    each: Traffic
    seconds: Seconds

    @property
    def total(self) -> Traffic:
        return self.each * self.times

    def to_json(self) -> Json:
        return {
            **{name: getattr(self.step, name) for name in ("name", "does", "phase", "when")},
            "over": self.step.over.value,
            "after": list(self.step.after),
            "times": self.times,
            "each": self.each.to_json(),
            "total": self.total.to_json(),
            "seconds": self.seconds.to_json(),
        }


@dataclass(frozen=True)
class Triples:
    """How much correlated randomness of one kind the store has."""

    kind: str
    unit: str
    count: int


@dataclass(frozen=True)
class Offline:
    """The store of one party: for how much it is made, what the dealer sends for it, what the party makes itself."""

    runs: int
    iterations: int
    dealer: str | None
    messages: int
    bytes_received: int
    triples: tuple[Triples, ...]
    ciphertexts: int
    cipher_bytes: int
    bytes_stored: int


@dataclass(frozen=True)
class Disk:
    """Bytes below `storage`."""

    store: int
    prepared: int
    checkpoints: int
    operands: int
    inbox: int

    @property
    def total(self) -> int:
        return sum(asdict(self).values())

    def to_json(self) -> Json:
        return {**asdict(self), "total": self.total}


@dataclass(frozen=True)
class Opened:
    """What someone will learn."""

    what: str
    to: tuple[str, ...]
    when: str


@dataclass(frozen=True)
class SelectedEngine:
    """The engine of one owner's product, and why."""

    party: str
    product: str
    engine: str
    asked: str
    why: str
    estimates: Mapping[str, Json]


@dataclass(frozen=True)
class JobPlan:
    """All of it."""

    party: str
    run: str
    peers: tuple[str, ...]
    job: Mapping[str, Any]
    links: Mapping[str, Mapping[str, float]]
    steps: tuple[StepPlan, ...]
    offline: Offline | None
    disk: Disk
    engines: tuple[SelectedEngine, ...]
    opened: tuple[Opened, ...]

    def step(self, name: str) -> StepPlan | None:
        return next((each for each in self.steps if each.step.name == name), None)

    def traffic(self, iterations: int | None = None) -> Traffic:
        """Of a run with so many iterations; None: as many as there can be."""
        return sum((each.each * self._times(each, iterations) for each in self.steps), Traffic())

    def seconds(self, iterations: int | None = None) -> Seconds:
        return sum((each.seconds * self._times(each, iterations) for each in self.steps), Seconds())

    @property
    def iteration(self) -> tuple[Traffic, Seconds]:
        """One of them."""
        within = [each for each in self.steps if each.step.when == "iteration"]
        return sum((each.each for each in within), Traffic()), sum((each.seconds for each in within), Seconds())

    def _times(self, each: StepPlan, iterations: int | None) -> int:
        return each.times if iterations is None or each.step.when != "iteration" else iterations

    def to_json(self) -> Json:
        each, seconds = self.iteration
        return {
            **{name: getattr(self, name) for name in ("party", "run")},
            "peers": list(self.peers),
            "job": dict(self.job),
            "links": {name: dict(link) for name, link in self.links.items()},
            "steps": [step.to_json() for step in self.steps],
            "iteration": {"traffic": each.to_json(), "seconds": seconds.to_json()},
            "total": {"traffic": self.traffic().to_json(), "seconds": self.seconds().to_json()},
            "offline": None if self.offline is None else asdict(self.offline),
            "disk": self.disk.to_json(),
            "engines": [asdict(engine) for engine in self.engines],
            "opened": [asdict(opened) for opened in self.opened],
        }
