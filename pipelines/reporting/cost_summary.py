"""The measured costs of a run: the counts of its stages added up by step and by phase, and charts of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from markupsafe import Markup

from veilmeans.io.storage.run_report import Stages, total_count
from veilmeans.pipelines.planning.units import format_duration, format_size
from veilmeans.transforms.kmeans.steps import step_name
from veilmeans.transforms.offline.traced_job import JobStep

PHASES = {"S1": "S1 distances", "S2": "S2 assignment", "S3": "S3 centroids", "": "before and after"}
"""The paper's three steps of an iteration, and everything else."""


@dataclass(frozen=True)
class StageCosts:
    """The counts of some stages: messages, bytes, seconds."""

    rounds: int
    messages: int
    sent: int
    received: int
    ciphertexts: int
    computed: float
    waited: float
    delivered: float

    @classmethod
    def of(cls, stages: Stages) -> "StageCosts":
        """Add up the counts of these stages."""
        counted = "messages", "bytes_sent", "bytes_received", "ciphertexts"
        times = [total_count(stages, f"{name}_us") / 1e6 for name in ("computed", "waited", "delivered")]
        return cls(len(stages), *(total_count(stages, name) for name in counted), *times)

    @property
    def seconds(self) -> float:
        return self.computed + self.waited + self.delivered

    @property
    def total_bytes(self) -> int:
        return self.sent + self.received


class Bar(NamedTuple):
    """A line of a chart."""

    name: str
    value: str
    picture: Markup


class Chart(NamedTuple):
    """Bars that belong together, and their sum."""

    name: str
    value: str
    bars: list[Bar]


def stages_by_step(stages: Stages) -> dict[str, Stages]:
    """Group stages by the name of their step, in the order in which they run."""
    groups: dict[str, Stages] = {}
    for stage in sorted(stages):
        groups.setdefault(step_name(stage), {})[stage] = stages[stage]
    return groups


def costs_by_phase(stages: Stages, steps: Sequence[JobStep]) -> dict[str, StageCosts]:
    """Add up the stages of each phase; stages of no step are in none of S1, S2, S3."""
    phases = {step.name: step.phase for step in steps}
    groups: dict[str, Stages] = {phase: {} for phase in PHASES}
    for stage, counts in stages.items():
        groups[phases.get(step_name(stage), "")][stage] = counts
    return {phase: StageCosts.of(group) for phase, group in groups.items()}


def draw_bar(parts: Sequence[tuple[str, float]], full: float, phase: str, title: str) -> Markup:
    """Draw a bar of parts as SVG, where `full` is all its width. A phase has a colour, each kind of part a texture."""
    drawn, start = [], 0.0
    for kind, value in parts:
        width = 100 * value / full if full > 0 else 0.0
        place = Markup('x="{}%" width="{}%" height="100%"').format(f"{start:.2f}", f"{width:.2f}")
        drawn.append(Markup('<rect class="fill {}" {}/>').format(phase.lower() or "other", place))
        drawn.append(Markup('<rect class="texture {}" {}/>').format(kind, place))
        start += width
    bar = Markup('<svg class="bar" role="img" width="100%" height="14"><title>{}</title>{}</svg>')
    return bar.format(title, Markup("").join(drawn))


def time_charts(spent: Mapping[str, tuple[float, Mapping[str, StageCosts]]]) -> list[Chart]:
    """Draw the times of the offline and the online phase: seconds, and the costs by phase. All bars have one scale."""
    charts = []
    rests = {
        name: max(0.0, seconds - sum(cost.seconds for cost in costs.values()))
        for name, (seconds, costs) in spent.items()
    }
    longest = max([*rests.values(), *(cost.seconds for _, costs in spent.values() for cost in costs.values())])
    for name, (seconds, costs) in spent.items():
        bars = []
        for phase, cost in costs.items():
            parts = [("computed", cost.computed), ("waited", cost.waited), ("delivered", cost.delivered)]
            bars += [_bar(name, phase, parts, longest, format_duration)] if cost.seconds else []
        rest = format_duration(rests[name])
        picture = draw_bar([("rest", rests[name])], longest, "", f"Beam, disk and the rest: {rest}")
        charts.append(Chart(name, format_duration(seconds), [*bars, Bar("Beam, disk, the rest", rest, picture)]))
    return charts


def traffic_charts(spent: Mapping[str, Mapping[str, StageCosts]]) -> list[Chart]:
    """Draw the traffic of the offline and the online phase, by phase. All bars have one scale."""
    charts = []
    largest = float(max(cost.total_bytes for costs in spent.values() for cost in costs.values()))
    for name, costs in spent.items():
        sent, received = sum(cost.sent for cost in costs.values()), sum(cost.received for cost in costs.values())
        bars = [
            _bar(name, phase, [("sent", cost.sent), ("received", cost.received)], largest, format_size)
            for phase, cost in costs.items()
            if cost.total_bytes
        ]
        charts.append(Chart(name, f"{format_size(sent)} sent, {format_size(received)} received", bars))
    return charts


def _bar(
    chart: str, phase: str, parts: Sequence[tuple[str, float]], full: float, format_value: Callable[[float], str]
) -> Bar:
    """A phase's bar; offline, what is in no phase is making triples as such."""
    name = "making triples" if chart == "Offline" and not phase else PHASES[phase]
    title = ", ".join(f"{kind} {format_value(value)}" for kind, value in parts)
    picture = draw_bar(parts, full, phase, f"{name}: {title}")
    return Bar(name, format_value(sum(value for _, value in parts)), picture)
