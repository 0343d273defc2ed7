"""`report.html` of a run at one party: one file that needs nothing else, from what lies on this party's disk.

It has counts, times, names and what was opened to this party; no share, no secret, no value of the data. The same files
make the same report.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from veilmeans.crypto.certificates import fingerprint
from veilmeans.io.storage.atomic_files import read_json, replaced_file
from veilmeans.io.storage.result_files import ASSIGNMENTS, CENTROIDS, RESULT, read_result
from veilmeans.io.storage.run_report import RunReport
from veilmeans.pipelines.planning.units import duration, size
from veilmeans.pipelines.reporting.cost_summary import PHASES, Cost, by_phase, by_step, time_charts, traffic_charts
from veilmeans.pipelines.reporting.disclosures import (
    COSTS,
    KEY,
    Disclosure,
    disclosures,
    message_contents,
    moment,
    period,
)
from veilmeans.pipelines.reporting.redacted_config import redacted_config
from veilmeans.pipelines.reporting.step_graph import draw_bar, draw_steps
from veilmeans.pipelines.session.kmeans_from_config import kmeans_steps, requested_engines, runs_in_one_call
from veilmeans.pipelines.session.trained_model import public_job
from veilmeans.schemas.config import JobConfig, kmeans_with_data
from veilmeans.schemas.errors import ConfigError, StorageError
from veilmeans.schemas.kmeans_config import KMeansConfig
from veilmeans.transforms.kmeans.steps import KMeansSteps, Step, steps_of
from veilmeans.transforms.products.engine_parameters import ChosenEngines

REPORT = "report.html"
_TEMPLATE = Path(__file__).with_name("report.html.j2")
_FILES = {
    ASSIGNMENTS: "cluster of each row",
    CENTROIDS: "centroids, in original units",
    RESULT: "what was opened to this party",
    "report.json": "the numbers of this report",
}


@dataclass(frozen=True)
class Facts:
    """What this party's files say about a run."""

    config: JobConfig
    job: KMeansConfig
    kmeans: KMeansSteps
    engines: ChosenEngines
    online: Mapping[str, Any]
    offline: Mapping[str, Any]
    result: Mapping[str, Any]
    done: int
    state: str
    openings: Sequence[Mapping[str, Any]]
    steps: tuple[Step, ...]


def write_report(config: JobConfig, base: Path | None = None) -> Path:
    """Write the report of a run, finished or not; `base` is the folder of its configuration."""
    page = report_page(config, base)
    with replaced_file(config.run_folder / REPORT) as part:
        part.touch(mode=0o600)
        part.write_text(page, encoding="utf-8")
    return config.run_folder / REPORT


def report_page(config: JobConfig, base: Path | None = None) -> str:
    """The report's HTML."""
    return _template().render(_content(_gather(config), base))


@cache
def _template() -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {
        "duration": duration,
        "size": size,
        "moment": moment,
        "period": period,
        "number": "{:,}".format,
    }
    return environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))


def _gather(config: JobConfig) -> Facts:
    job, folder = kmeans_with_data(config), config.run_folder
    online = RunReport(folder).content
    saved, result = read_json(folder / "finished.json"), read_result(folder)
    if saved is None and not (folder / "report.json").exists():
        raise StorageError(f"run {config.run!r} of {config.party} has not begun: there is nothing to report yet")
    if saved is not None and saved["job"] != public_job(config):
        raise ConfigError(f"the configuration has changed since run {config.run!r}: only kmeans.reveal may differ")
    engines = _engines(config)
    kmeans = kmeans_steps(config, engines)
    openings = online.get("openings") or ([_planned(job)] if result else [])
    done = max([0, *(each["done"] for each in online["iterations"])])
    state = _state(folder, result)
    steps = _steps(job, kmeans, openings or [_planned(job)])
    if result:
        steps = present(steps, by_step(online["stages"]))
    offline = RunReport(config.offline().run_folder).content
    return Facts(config, job, kmeans, engines, online, offline, result, done, state, openings, steps)


def _engines(config: JobConfig) -> ChosenEngines:
    """Those of the store, whose manifest alone is read; if it is gone, those that were asked for."""
    manifest = read_json(config.store_folder / "manifest.json") or {}
    return tuple(tuple(each) for each in manifest.get("engines", ())) or requested_engines(config)


def _planned(job: KMeansConfig) -> dict[str, Any]:
    """An opening whose time was not kept."""
    return {"when": None, "policy": job.reveal.model_dump(mode="json")}


def _state(folder: Path, result: Mapping[str, Any]) -> str:
    if (folder / "farewell").exists():
        return "finished"
    return "complete here" if result else "not finished"


def _steps(job: KMeansConfig, kmeans: KMeansSteps, openings: Sequence[Mapping[str, Any]]) -> tuple[Step, ...]:
    statistics = {"minmax": "extremes", "zscore": "moments"}.get(job.normalise.method)
    named = {name for each in openings for name in ("assignments", "centroids", "inertia") if each["policy"][name]}
    opened = {"reveal-assignments" if name == "assignments" else "reveal-centres" for name in named}
    return steps_of(kmeans, statistics if job.aggregates else None, opened)


def present(steps: Sequence[Step], seen: Mapping[str, object]) -> tuple[Step, ...]:
    """The steps that have run; what came after another one comes after those before it."""
    before: dict[str, tuple[str, ...]] = {}
    kept = []
    for step in steps:
        after = tuple(dict.fromkeys(name for each in step.after for name in before.get(each, ())))
        before[step.name] = (step.name,) if step.name in seen else after
        if step.name in seen:
            kept.append(replace(step, after=after))
    return tuple(kept)


def _content(facts: Facts, base: Path | None) -> dict[str, Any]:
    config, job, layout = facts.config, facts.job, facts.kmeans.layout
    return {
        "config": config,
        "job": job,
        "peers": [name for name in config.parties if name != config.party],
        "state": facts.state,
        "online": facts.online,
        "offline": facts.offline if facts.offline["seconds"] else None,
        "done": facts.done,
        "stopped": facts.result.get("stopped"),
        "rows": layout.total_rows,
        "features": layout.total_features,
        "shards": len(layout.row_shards()),
        "whole": runs_in_one_call(config, facts.kmeans),
        "total": Cost.of(facts.online["stages"]),
        "total_offline": Cost.of(facts.offline["stages"]),
        "files": _files(config.run_folder),
        "inertia": facts.result.get("inertia"),
        "sizes": _sizes(facts),
        "told": _told(facts),
        "pipelines": _pipelines(facts.online["iterations"]),
        "engines": dict(zip(config.parties, facts.engines, strict=False)),
        "fingerprints": _fingerprints(config),
        "software": facts.online.get("software", {}),
        "yaml": redacted_config(config, base),
        **_spending(facts),
    }


def _spending(facts: Facts) -> dict[str, Any]:
    """Time and traffic: charts, a line for each step, the graph."""
    online, offline = facts.online["stages"], facts.offline["stages"]
    phases = {"Offline": by_phase(offline, facts.steps), "Online": by_phase(online, facts.steps)}
    seconds = {"Offline": facts.offline["seconds"], "Online": facts.online["seconds"]}
    if not seconds["Offline"]:
        del phases["Offline"]
    stages = by_step(online)
    costs = {name: Cost.of(part) for name, part in stages.items()}
    notes = {name: f"{duration(cost.seconds)} · {size(cost.sent)} sent" for name, cost in costs.items()}
    known = {step.name: step for step in facts.steps}
    return {
        "times": time_charts({name: (seconds[name], costs) for name, costs in phases.items()}),
        "traffic": traffic_charts(phases),
        "steps": [
            {
                "name": name,
                "does": known[name].does if name in known else "",
                "phase": known[name].phase if name in known else "",
                "cost": costs.get(name, Cost.of({})),
                "stages": {stage: Cost.of({stage: counts}) for stage, counts in stages.get(name, {}).items()},
                "crossing": message_contents(facts.kmeans, name) if name in known else [],
            }
            for name in (*known, *(name for name in stages if name not in known))
        ],
        "phases": PHASES,
        "wide": draw_steps(facts.steps, notes, wide=True),
        "narrow": draw_steps(facts.steps, notes, wide=False),
    }


def _told(facts: Facts) -> list[Disclosure]:
    config = facts.config
    folder = config.offline().run_folder
    said = [read_json(folder / f"bound.{config.party}-to-{peer}.json") or {} for peer in config.peers]
    offline = [COSTS] if any("costs" in each.get("announced", {}) for each in said) else []
    offline += [KEY] if facts.kmeans.engines.cipher else []
    return disclosures(config, facts.job, facts.openings, facts.done, offline)


def _files(folder: Path) -> list[tuple[str, str, int]]:
    """Name, content and size of what the run has left for people."""
    found = {name: folder / name for name in _FILES}
    return [(name, _FILES[name], file.stat().st_size) for name, file in found.items() if file.exists()]


def _sizes(facts: Facts) -> list[tuple[int, int, Markup]]:
    """How many rows each cluster has, where this party was told each row's."""
    file = facts.config.run_folder / ASSIGNMENTS
    if "assignments" not in facts.result or not file.exists():
        return []
    counts = np.zeros(facts.job.clusters, np.int64)
    with pyarrow.parquet.ParquetFile(file) as table:
        column = table.schema_arrow.names[-1]
        for batch in table.iter_batches(columns=[column]):
            counts += np.bincount(batch.column(0).to_numpy(), minlength=len(counts))
    largest = float(counts.max())
    return [
        (number, int(count), draw_bar([("computed", float(count))], largest, "", f"cluster {number}: {count:,} rows"))
        for number, count in enumerate(counts)
    ]


def _pipelines(iterations: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One line for each pipeline: which iterations it did, and what one of them took."""
    befores = [0, *(each["done"] for each in iterations)]
    lines = [
        {**each, "first": before + 1, "count": each["done"] - before}
        for before, each in zip(befores, iterations, strict=False)
        if each["done"] > before
    ]
    slowest = max((line["seconds"] / line["count"] for line in lines), default=0.0)
    for line in lines:
        seconds = line["seconds"] / line["count"]
        line["picture"] = draw_bar([("computed", seconds)], slowest, "", f"{duration(seconds)} an iteration")
    return lines


def _fingerprints(config: JobConfig) -> dict[str, str]:
    """Of everyone's certificate, as `veilmeans keys` tells it."""
    files = {config.party: config.certificate, **{name: peer.certificate for name, peer in config.peers.items()}}
    return {name: _fingerprint(file) for name, file in files.items()}


def _fingerprint(file: Path) -> str:
    try:
        return fingerprint(file.read_bytes())
    except (OSError, ValueError):
        return "cannot be read"
