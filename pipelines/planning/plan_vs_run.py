"""`veilmeans plan --compare RUN`: the plan beside what `report.json` of a run has measured, step by step.

`PlanVsRun.to_json`: party, run, iterations (that were done), seconds (that the run took); steps and total, each with
planned and measured (rounds, messages, bytes_sent, bytes_received, seconds) and difference (of the four numbers:
measured over planned, in percent; null where nothing was planned and something was measured). Rounds of a step are
those of one time in which this party sends or receives something; in total they are all of the run's that wait for each
other: rounds of steps beside each other count once. A run of fewer iterations than it might have had has stopped in the
one after them, as far as the stop bit. Planned seconds are those that each link takes, measured ones `computed`,
`waited` and `delivered`. Work of a process that died before its pipeline ended is in no report.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from veilmeans.io.files.atomic_files import parse_json
from veilmeans.pipelines.planning.job_plan import plan_ahead
from veilmeans.pipelines.planning.plan_schema import JobPlan, Json, Traffic
from veilmeans.pipelines.planning.planned_bytes import waits_of
from veilmeans.pipelines.session.result_opening import policy_digest
from veilmeans.schemas.address import checked_name
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import StorageError
from veilmeans.transforms.kmeans.steps import step_name

_COUNTS = ("rounds", "messages", "bytes_sent", "bytes_received")
MEASURED_TIMES = ("computed", "waited", "delivered")


@dataclass(frozen=True)
class StepTotals:
    """Rounds, messages, bytes and seconds of a step, as planned or as measured."""

    rounds: int = 0
    messages: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class StepComparison:
    """One step, or all of them together."""

    name: str
    planned: StepTotals
    measured: StepTotals

    def difference(self, name: str) -> float | None:
        """The difference in percent of what was planned; None if nothing was."""
        planned, measured = getattr(self.planned, name), getattr(self.measured, name)
        if planned == measured:
            return 0.0
        return 100 * (measured - planned) / planned if planned else None

    def to_json(self) -> Json:
        return {**asdict(self), "difference": {name: self.difference(name) for name in _COUNTS}}


@dataclass(frozen=True)
class PlanVsRun:
    """A plan and a run, compared."""

    party: str
    run: str
    iterations: int
    seconds: float
    steps: tuple[StepComparison, ...]
    total: StepComparison

    def to_json(self) -> Json:
        return {**asdict(self), "steps": [step.to_json() for step in self.steps], "total": self.total.to_json()}


def compare_with_run(config: JobConfig, run: str | None = None) -> PlanVsRun:
    """Compare the plan of the configured job with a run of it, by default the configured one."""
    config = config.model_copy(update={"run": checked_name("--compare", run or config.run)})
    report, plan = _read_report(config), plan_ahead(config)
    done = max((each["done"] for each in report["iterations"]), default=0)
    measured = _measured(report["stages"], f"-{policy_digest(config.required_kmeans.reveal)}")
    stopped = done < int(plan.job["max_iter"])
    planned = {each.step.name: _planned(plan, each.traffic(done, stopped), each.each.rounds) for each in plan.steps}
    names = (*planned, *(name for name in measured if name not in planned))
    steps = tuple(StepComparison(name, planned.get(name, StepTotals()), _totals(measured[name])) for name in names)
    traffic, all_measured = plan.traffic(done, stopped), sum(measured.values(), Counter())
    times = {each.step.name: each.step.times(done, stopped) for each in plan.steps}
    waits = waits_of([each.step for each in plan.steps], _with_messages(report["stages"]))
    all_measured["rounds"] = sum(waits[name] * times.get(name, 1) for name in measured)
    total = StepComparison("all", _planned(plan, traffic, traffic.waits), _totals(all_measured))
    return PlanVsRun(config.party, config.run, done, float(report["seconds"]), steps, total)


def _with_messages(stages: Mapping[str, Mapping[str, int]]) -> list[str]:
    """The stages in which this party has sent or received something."""
    return [stage for stage, counts in stages.items() if counts.get("messages") or counts.get("bytes_received")]


def _read_report(config: JobConfig) -> Json:
    file = config.run_folder.report
    try:
        content = parse_json(file.read_text())
        fields = (("iterations", list), ("seconds", float), ("stages", dict))
        return {name: kind(content[name]) for name, kind in fields}
    except FileNotFoundError:
        raise StorageError(
            f"run {config.run!r} has no report at {config.party} ({file}): train it, or name another with --compare"
        ) from None
    except (OSError, ValueError, KeyError, TypeError):
        raise StorageError(f"{file} cannot be read as the report of a K-means run") from None


def _measured(stages: dict[str, dict[str, int]], opening: str) -> dict[str, Counter[str]]:
    """Sum up the counts of each step's stages. Only openings by the configured policy count."""
    sums: dict[str, Counter[str]] = defaultdict(Counter)
    for stage, counts in stages.items():
        step = step_name(stage)
        if step.startswith("reveal-") and not stage.split(".")[0].endswith(opening):
            continue
        sums[step].update(counts)
        sums[step]["rounds"] += bool(counts.get("messages") or counts.get("bytes_received"))
    return sums


def _totals(sums: Counter[str]) -> StepTotals:
    seconds = {name: sums[f"{name}_us"] / 1e6 for name in MEASURED_TIMES}
    return StepTotals(sums["rounds"], sums["messages"], sums["bytes_sent"], sums["bytes_received"], seconds)


def _planned(plan: JobPlan, traffic: Traffic, rounds: int) -> StepTotals:
    """The planned traffic of all times, and the rounds to show with it."""
    return StepTotals(rounds, traffic.messages, traffic.bytes_sent, traffic.bytes_received, plan.seconds(traffic))
