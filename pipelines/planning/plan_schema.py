"""The plan of a run at one party as plain data: the answer of `veilmeans plan`, and its JSON.

`JobPlan.to_json` has these fields; names stay as they are, and new ones may be added. Bytes are those of message
payloads as they are sent (Arrow IPC streams), which `report.json` of a run counts, too; handshake, farewell, envelopes
(64 bytes a message) and TLS are not included. Steps that run beside each other share their waits: `waits` counts the
rounds on the critical path, those of the longest of such steps. Seconds on a link are waits × (half a round trip + 4 ms
at the parties) + acknowledgements × a round trip + bottleneck_bytes ÷ rate: a round waits for no acknowledgement, a
checkpoint waits for those of all messages before it; computing on large shards is not included. All other numbers are
exact, unless it says otherwise, and but for the lengths of column names, which `columns: all` opens with the centroids.

  party, run, peers   whose plan it is
  job                 layout, rows, padding (rows of weight 0 that fill shards up to those of the triple store),
                      columns, clusters, model (of a prediction), starts, seeds (centroids that k-means++ chooses),
                      max_iter, tol, shards, column_shards, runner, rounds ("one_call": one call an
                      iteration; "stages": a Beam stage for each round), compare_bits, compared_bits,
                      assignment ("pairs", "tree"), radices (of a comparison's rounds),
                      makes_store (the triple store that the parties make first, if it is missing)
  links               name -> rate_mbps, round_trip_ms
  steps               in the order in which they run: name, computes, phase (S1, S2, S3 or ""), over ("rows",
                      "columns", "one"), when ("once", "seed", "iteration", "later": in each iteration but the first,
                      "last": after the last one, "end"), after and beside (names of steps), times (at most), each
                      (`Traffic` of one time: rounds, waits, messages, bytes_sent, bytes_received, sent and received
                      by peer, bottleneck_bytes, acknowledgements), total (of all times), seconds (by link, of one
                      time)
  iteration, total    traffic (as `each`) and seconds (by link) of one iteration, and of a run of max_iter iterations
  offline             runs, iterations, provider ("dealer", "ot", "iknp"), dealer, messages, bytes_received, bytes_sent,
                      triples (kind, unit, count), ciphertexts, cipher_bytes, bytes_stored (files of the triple store),
                      seconds (by link); without a dealer made (name of the round as in the store's report, messages,
                      bytes_sent, bytes_received), rounds (that wait for each other), passes (over all places, after
                      the set-up), cots (correlated OTs both ways), computing (processor seconds for them, estimated)
                      and bytes_making (files that are deleted when the store is complete, at their largest,
                      estimated); all for the complete triple store. The dealer's messages are received, the others'
                      sent
  disk                store, prepared (estimated), checkpoints, operands, inbox (peak, estimated), total; in bytes
  engines             party, product, engine, requested, reason, estimates (engine -> seconds, bytes, offline_bytes and,
                      without a dealer, offline_seconds, offline_sent of one iteration, by the cost model; empty where
                      the engine does not depend on it)
  opened              what, to (names), when ("before", "iteration", "end")
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from veilmeans.io.exchange.link_shaping import Link
from veilmeans.transforms.offline.traced_job import JobStep
from veilmeans.transforms.primitives.argmin_choice import OT_PRICES, ROUND_SECONDS

Json = dict[str, Any]
SET_UP = ("nonce", "points", "choices", "columns", "trees")
"""The rounds of OTs' set-up, one after the other; all others are in passes over a store's places."""


@dataclass(frozen=True)
class Traffic:
    """Messages between one party and its peers: rounds in which it takes part, messages that it sends, bytes.

    `waits`: the rounds that no other step waits for at the same time, or this one of several; their sum over all steps
    is the number of rounds that wait for each other.
    `bottleneck_bytes`: sum over the rounds of the bytes of the party that sends most; a link's rate delays a run by
    these.
    `acknowledgements`: how often the party waits until its peers have acknowledged everything.
    """

    rounds: int = 0
    messages: int = 0
    sent: Mapping[str, int] = field(default_factory=dict)
    received: Mapping[str, int] = field(default_factory=dict)
    bottleneck_bytes: int = 0
    waits: int = 0
    acknowledgements: int = 0

    @property
    def bytes_sent(self) -> int:
        return sum(self.sent.values())

    @property
    def bytes_received(self) -> int:
        return sum(self.received.values())

    def seconds_on(self, link: Link) -> float:
        """Seconds that rounds and bytes take on the link."""
        rounds = self.waits * (link.round_trip / 2 + ROUND_SECONDS)
        return rounds + self.acknowledgements * link.round_trip + self.bottleneck_bytes / link.rate

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(
            self.rounds + other.rounds,
            self.messages + other.messages,
            dict(Counter(self.sent) + Counter(other.sent)),
            dict(Counter(self.received) + Counter(other.received)),
            self.bottleneck_bytes + other.bottleneck_bytes,
            self.waits + other.waits,
            self.acknowledgements + other.acknowledgements,
        )

    def __mul__(self, times: int) -> "Traffic":
        sent, received = ({peer: times * n for peer, n in each.items()} for each in (self.sent, self.received))
        bottleneck, waits, acknowledged = (
            times * count for count in (self.bottleneck_bytes, self.waits, self.acknowledgements)
        )
        return Traffic(times * self.rounds, times * self.messages, sent, received, bottleneck, waits, acknowledged)

    def to_json(self) -> Json:
        return {**asdict(self), "bytes_sent": self.bytes_sent, "bytes_received": self.bytes_received}


@dataclass(frozen=True)
class StepPlan:
    """One step of the graph: its traffic each time, and how often it is done at most."""

    step: JobStep
    times: int
    each: Traffic

    def traffic(self, iterations: int | None = None, stopped: bool = False) -> Traffic:
        """The step's traffic in a run of so many iterations; None: as many as there can be."""
        return self.each * (self.times if iterations is None else self.step.times(iterations, stopped))

    def to_json(self) -> Json:
        fields = {name: getattr(self.step, name) for name in ("name", "computes", "phase", "when", "after", "beside")}
        traffic = {"each": self.each.to_json(), "total": self.traffic().to_json()}
        return {**fields, "over": self.step.over.value, "times": self.times, **traffic}


@dataclass(frozen=True)
class TripleCount:
    """The amount of correlated randomness of one kind in a triple store."""

    kind: str
    unit: str
    count: int


@dataclass(frozen=True)
class OfflineRound:
    """One round in which parties make a store themselves: messages that one of them sends, bytes."""

    name: str
    messages: int
    bytes_sent: int
    bytes_received: int


@dataclass(frozen=True)
class OfflinePlan:
    """One party's triple store: how much it serves, what the dealer sends for it, what the party makes itself.

    Without a dealer: `made` has the rounds with the peers, `cots` the correlated OTs that the party sends and
    receives in all places, `bytes_making` about the size of files that are deleted when the store is complete, `passes`
    those over all places that wait for each other.
    """

    runs: int
    iterations: int
    dealer: str | None
    messages: int
    bytes_received: int
    triples: tuple[TripleCount, ...]
    ciphertexts: int
    cipher_bytes: int
    bytes_stored: int
    provider: str = "dealer"
    made: tuple[OfflineRound, ...] = ()
    cots: int = 0
    bytes_making: int = 0
    passes: int = 0

    @property
    def rounds(self) -> int:
        """Rounds that wait for each other: those of the set-up, and the passes over all places."""
        return len([each for each in self.made if each.name in SET_UP]) + self.passes

    @property
    def bytes_sent(self) -> int:
        return sum(each.bytes_sent for each in self.made)

    @property
    def computing(self) -> float:
        """About the processor seconds of the OTs."""
        return self.cots * OT_PRICES[self.provider].seconds if self.cots else 0.0

    def seconds_on(self, link: Link) -> float:
        """Seconds that rounds and bytes take on the link."""
        waits = self.rounds * (link.round_trip / 2 + ROUND_SECONDS)
        return waits + max(self.bytes_sent, self.bytes_received) / link.rate

    def to_json(self) -> Json:
        made = {"rounds": self.rounds, "bytes_sent": self.bytes_sent, "computing": self.computing}
        return {**asdict(self), **made}


@dataclass(frozen=True)
class DiskPlan:
    """Bytes below `storage`."""

    store: int
    prepared: int
    checkpoints: int
    operands: int
    inbox: int

    def to_json(self) -> Json:
        return {**asdict(self), "total": sum(asdict(self).values())}


@dataclass(frozen=True)
class PlannedOpening:
    """A value that will be opened, and to whom."""

    what: str
    to: tuple[str, ...]
    when: str


@dataclass(frozen=True)
class SelectedEngine:
    """The engine of one owner's product, and the reason."""

    party: str
    product: str
    engine: str
    requested: str
    reason: str
    estimates: Mapping[str, Json]


@dataclass(frozen=True)
class JobPlan:
    """The plan of a run at one party."""

    party: str
    run: str
    peers: tuple[str, ...]
    job: Mapping[str, Any]
    links: Mapping[str, Link]
    steps: tuple[StepPlan, ...]
    offline: OfflinePlan | None
    disk: DiskPlan
    engines: tuple[SelectedEngine, ...]
    opened: tuple[PlannedOpening, ...]

    def traffic(self, iterations: int | None = None, stopped: bool = False) -> Traffic:
        """The traffic of a run of so many iterations; None: as many as there can be."""
        done = int(self.job["max_iter"]) if iterations is None else iterations
        return sum((each.traffic(iterations, stopped) for each in self.steps), self._checkpoints(done))

    @property
    def iteration(self) -> Traffic:
        """The traffic of one iteration, any but the first."""
        steps = (each.each for each in self.steps if each.step.when in ("iteration", "later"))
        return sum(steps, self._checkpoints(1))

    def _checkpoints(self, iterations: int) -> Traffic:
        """The acknowledgements that checkpoints wait for; a prediction writes none."""
        return Traffic(acknowledgements=0 if self.job["model"] else iterations)

    def seconds(self, traffic: Traffic) -> dict[str, float]:
        """Seconds that each link takes for some traffic."""
        return {name: traffic.seconds_on(link) for name, link in self.links.items()}

    def _offline_json(self, offline: OfflinePlan) -> Json:
        return {**offline.to_json(), "seconds": {name: offline.seconds_on(link) for name, link in self.links.items()}}

    def to_json(self) -> Json:
        links = {
            name: {"rate_mbps": link.rate / 125e3, "round_trip_ms": link.round_trip * 1e3}
            for name, link in self.links.items()
        }
        return {
            **{name: getattr(self, name) for name in ("party", "run", "peers", "job")},
            "links": links,
            "steps": [{**step.to_json(), "seconds": self.seconds(step.each)} for step in self.steps],
            "iteration": {"traffic": self.iteration.to_json(), "seconds": self.seconds(self.iteration)},
            "total": {"traffic": self.traffic().to_json(), "seconds": self.seconds(self.traffic())},
            "offline": None if self.offline is None else self._offline_json(self.offline),
            "disk": self.disk.to_json(),
            "engines": [asdict(engine) for engine in self.engines],
            "opened": [asdict(opened) for opened in self.opened],
        }
