"""`veilmeans plan --compare RUN`: what the plan says beside what `report.json` of a run has measured, step by step.

`PlanVsRun.to_json`: party, run, iterations (that were done), seconds (that the run took); steps and total, each with
planned and measured (rounds, messages, bytes_sent, bytes_received, seconds) and difference (of the four numbers:
measured over planned, in percent; null where nothing was planned and something is there). Rounds of a step are those of
one time, in which this party sends or receives something; in total they are all of the run's. Planned seconds are
`computed` and by link, measured ones `computed`, `waited` and `handed_over`. What a process did that died before its
pipeline ended is not in a report.
"""

import json
from collections import Counter
from dataclasses import dataclass

from veilmeans.pipelines.planning.job_plan import plan_ahead
from veilmeans.pipelines.planning.plan_schema import JobPlan, Json
from veilmeans.pipelines.session.result_opening import policy_digest
from veilmeans.schemas.address import checked_name
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import StorageError
from veilmeans.transforms.kmeans.steps import step_of

_COUNTS = ("rounds", "messages", "bytes_sent", "bytes_received")
_TIMES = ("computed", "waited", "handed_over")


@dataclass(frozen=True)
class Side:
    """Rounds, messages, bytes and seconds, as planned or as measured."""

    rounds: int
    messages: int
    bytes_sent: int
    bytes_received: int
    seconds: Json

    def to_json(self) -> Json:
        return {**{name: getattr(self, name) for name in _COUNTS}, "seconds": self.seconds}


@dataclass(frozen=True)
class Pair:
    """One step, or all of them."""

    name: str
    planned: Side
    measured: Side

    def difference(self, name: str) -> float | None:
        """In percent of what was planned."""
        planned, measured = getattr(self.planned, name), getattr(self.measured, name)
        if planned == measured:
            return 0.0
        return 100 * (measured - planned) / planned if planned else None

    def to_json(self) -> Json:
        sides = {"planned": self.planned.to_json(), "measured": self.measured.to_json()}
        return {"name": self.name, **sides, "difference": {name: self.difference(name) for name in _COUNTS}}


@dataclass(frozen=True)
class PlanVsRun:
    """A plan and a run."""

    party: str
    run: str
    iterations: int
    seconds: float
    steps: tuple[Pair, ...]
    total: Pair

    def to_json(self) -> Json:
        return {
            **{name: getattr(self, name) for name in ("party", "run", "iterations", "seconds")},
            "steps": [step.to_json() for step in self.steps],
            "total": self.total.to_json(),
        }


def compare_with_run(config: JobConfig, run: str | None = None) -> PlanVsRun:
    """The plan of the configured job beside a run of it, by default the configured one."""
    config = config.model_copy(update={"run": checked_name("--compare", run or config.run)})
    report, plan = _report(config), plan_ahead(config)
    done = max((each["done"] for each in report["iterations"]), default=0)
    measured = _measured(report["stages"], f"-{policy_digest(config.required_kmeans.reveal)}")
    names = [each.step.name for each in plan.steps]
    strangers = [name for name in measured if name not in names]
    steps = tuple(Pair(name, _planned(plan, name, done), measured.get(name, _NOTHING)) for name in (*names, *strangers))
    times = {each.step.name: done for each in plan.steps if each.step.when == "iteration"}
    total = Pair("all", _sum_planned(plan, done), _sum(measured, times))
    return PlanVsRun(config.party, config.run, done, float(report["seconds"]), steps, total)


_NOTHING = Side(0, 0, 0, 0, dict.fromkeys(_TIMES, 0.0))


def _report(config: JobConfig) -> Json:
    file = config.run_folder / "report.json"
    try:
        found = json.loads(file.read_text())
        return {name: kind(found[name]) for name, kind in (("iterations", list), ("seconds", float), ("stages", dict))}
    except FileNotFoundError:
        raise StorageError(
            f"run {config.run!r} has no report at {config.party} ({file}): train it, or name another with --compare"
        ) from None
    except (OSError, ValueError, KeyError, TypeError):
        raise StorageError(f"{file} cannot be read as the report of a K-means run") from None


def _measured(stages: dict[str, dict[str, int]], opening: str) -> dict[str, Side]:
    """By step. Of openings only those by the configured policy count."""
    found: dict[str, Counter[str]] = {}
    for stage, counts in stages.items():
        step = step_of(stage)
        if step.startswith("reveal-") and not stage.split(".")[0].endswith(opening):
            continue
        sums = found.setdefault(step, Counter())
        sums.update(counts)
        sums["rounds"] += bool(counts.get("messages") or counts.get("bytes_received"))
    return {step: _side(sums) for step, sums in found.items()}


def _side(sums: Counter[str]) -> Side:
    times = {name: sums[f"{name}_us"] / 1e6 for name in _TIMES}
    return Side(sums["rounds"], sums["messages"], sums["bytes_sent"], sums["bytes_received"], times)


def _planned(plan: JobPlan, name: str, done: int) -> Side:
    """Of all times but for the rounds, which are those of one."""
    each = plan.step(name)
    if each is None:
        return Side(0, 0, 0, 0, {})
    times = done if each.step.when == "iteration" else 1
    moved = each.each * times
    spent = (each.seconds * times).to_json()
    return Side(each.each.rounds, moved.messages, moved.bytes_sent, moved.bytes_received, spent)


def _sum_planned(plan: JobPlan, done: int) -> Side:
    moved = plan.traffic(done)
    return Side(moved.rounds, moved.messages, moved.bytes_sent, moved.bytes_received, plan.seconds(done).to_json())


def _sum(measured: dict[str, Side], times: dict[str, int]) -> Side:
    sides = measured.values()
    rounds = sum(side.rounds * times.get(name, 1) for name, side in measured.items())
    messages, sent, received = (sum(getattr(side, name) for side in sides) for name in _COUNTS[1:])
    spent = {name: sum(side.seconds[name] for side in sides) for name in _TIMES}
    return Side(rounds, messages, sent, received, spent)
