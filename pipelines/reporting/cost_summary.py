"""What a run has spent, for people: the counts of its stages added up by step and by phase, and numbers in words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from veilmeans.io.storage.run_report import Stages, total_count
from veilmeans.pipelines.planning.units import duration, size
from veilmeans.pipelines.reporting.step_graph import draw_bar
from veilmeans.transforms.kmeans.steps import Step, step_of

PHASES = {"S1": "S1 distances", "S2": "S2 assignment", "S3": "S3 centroids", "": "before and after"}
"""The paper's three steps of an iteration, and what is in none of them."""


@dataclass(frozen=True)
class Cost:
    """The counts of some stages: messages, bytes, seconds."""

    rounds: int
    messages: int
    sent: int
    received: int
    computed: float
    waited: float
    handed_over: float
    ciphertexts: int

    @classmethod
    def of(cls, stages: Stages) -> "Cost":
        return cls(
            rounds=len(stages),
            messages=total_count(stages, "messages"),
            sent=total_count(stages, "bytes_sent"),
            received=total_count(stages, "bytes_received"),
            computed=total_count(stages, "computed_us") / 1e6,
            waited=total_count(stages, "waited_us") / 1e6,
            handed_over=total_count(stages, "handed_over_us") / 1e6,
            ciphertexts=total_count(stages, "ciphertexts"),
        )

    @property
    def seconds(self) -> float:
        return self.computed + self.waited + self.handed_over

    @property
    def moved(self) -> int:
        return self.sent + self.received


@dataclass(frozen=True)
class Bar:
    """A line of a chart."""

    name: str
    value: str
    picture: Markup


@dataclass(frozen=True)
class Chart:
    """Lines that belong together, and what they add up to."""

    name: str
    value: str
    bars: tuple[Bar, ...]


def by_step(stages: Stages) -> dict[str, Stages]:
    """Step -> its stages, in the order in which they run."""
    found: dict[str, Stages] = {}
    for stage in sorted(stages):
        found.setdefault(step_of(stage), {})[stage] = stages[stage]
    return found


def by_phase(stages: Stages, steps: Sequence[Step]) -> dict[str, Cost]:
    """Phase -> what its stages cost; stages of no step are in none of S1, S2, S3."""
    phases = {step.name: step.phase for step in steps}
    parts: dict[str, Stages] = {phase: {} for phase in PHASES}
    for stage, counts in stages.items():
        parts[phases.get(step_of(stage), "")][stage] = counts
    return {phase: Cost.of(part) for phase, part in parts.items()}


def time_charts(spent: Mapping[str, tuple[float, Mapping[str, Cost]]]) -> list[Chart]:
    """Offline or online -> its seconds, and the costs of its phases; all lines have one scale."""
    rest = {name: max(0.0, all_of - sum(c.seconds for c in costs.values())) for name, (all_of, costs) in spent.items()}
    whole = max([*rest.values(), *(cost.seconds for _, costs in spent.values() for cost in costs.values())], default=0)
    charts = []
    for name, (seconds, costs) in spent.items():
        bars = [_time_bar(_name(name, phase), phase, cost, whole) for phase, cost in costs.items() if cost.seconds]
        picture = draw_bar([("rest", rest[name])], whole, "", f"Beam, disk and the rest: {duration(rest[name])}")
        charts.append(
            Chart(name, duration(seconds), (*bars, Bar("Beam, disk, the rest", duration(rest[name]), picture)))
        )
    return charts


def _name(when: str, phase: str) -> str:
    """Offline, what is in no phase is the exchange with the dealer."""
    return "with the dealer" if when == "Offline" and not phase else PHASES[phase]


def _time_bar(name: str, phase: str, cost: Cost, whole: float) -> Bar:
    parts = [("computed", cost.computed), ("waited", cost.waited), ("handed", cost.handed_over)]
    words = ", ".join(f"{word} {duration(value)}" for word, (_, value) in zip(_TIMES, parts, strict=True))
    return Bar(name, duration(cost.seconds), draw_bar(parts, whole, phase, f"{name}: {words}"))


_TIMES = ("computed", "waited", "handed over")


def traffic_charts(spent: Mapping[str, Mapping[str, Cost]]) -> list[Chart]:
    """Offline or online -> the costs of its phases; all lines have one scale."""
    whole = float(max((cost.moved for costs in spent.values() for cost in costs.values()), default=0))
    charts = []
    for name, costs in spent.items():
        sent, received = sum(cost.sent for cost in costs.values()), sum(cost.received for cost in costs.values())
        bars = [_traffic_bar(_name(name, phase), phase, cost, whole) for phase, cost in costs.items() if cost.moved]
        charts.append(Chart(name, f"{size(sent)} sent, {size(received)} received", tuple(bars)))
    return charts


def _traffic_bar(name: str, phase: str, cost: Cost, whole: float) -> Bar:
    words = f"{name}: sent {size(cost.sent)}, received {size(cost.received)}"
    picture = draw_bar([("computed", cost.sent), ("waited", cost.received)], whole, phase, words)
    return Bar(name, size(cost.moved), picture)
