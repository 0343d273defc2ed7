"""The run report as a page, `report.html`: one self-contained file, made from this party's own files.

It has counts, times, names and what was opened to this party; no share, no secret, no value of the data. The same files
make the same page.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from veilmeans.crypto.certificates import fingerprint
from veilmeans.io.files.atomic_files import atomic_write, read_json
from veilmeans.io.storage.result_files import read_result
from veilmeans.io.storage.run_report import RunReport
from veilmeans.pipelines.planning.units import format_duration, format_period, format_size, format_time
from veilmeans.pipelines.reporting.cluster_details import mean_contributions, profile_lines
from veilmeans.pipelines.reporting.cost_summary import (
    StageCosts,
    costs_by_phase,
    draw_bar,
    stages_by_step,
    time_charts,
    traffic_charts,
)
from veilmeans.pipelines.reporting.disclosures import ANNOUNCED_COSTS, PUBLIC_KEY, Disclosure, disclosures
from veilmeans.pipelines.reporting.redacted_config import redacted_config
from veilmeans.pipelines.reporting.results_table import count_rows, count_scores, withheld_centroids
from veilmeans.pipelines.reporting.step_graph import graph_rows
from veilmeans.pipelines.session.kmeans_from_config import (
    kmeans_steps,
    requested_engines,
    runs_in_one_call,
    statistics_method,
)
from veilmeans.pipelines.session.trained_model import public_job
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import ConfigError, StorageError
from veilmeans.schemas.kmeans_config import REVEALED, KMeansConfig
from veilmeans.schemas.run_folder import RunFolder
from veilmeans.transforms.kmeans.job_trace import trace_job
from veilmeans.transforms.kmeans.steps import KMeansSteps
from veilmeans.transforms.offline.traced_job import JobStep
from veilmeans.transforms.openings.reveal_policy import RevealPolicy

_COLUMNS = 20  # how many columns are shown
_TEMPLATE = Path(__file__).with_name("report.html.j2")


@dataclass(frozen=True)
class RunFacts:
    """A run as this party's files describe it."""

    config: JobConfig
    job: KMeansConfig
    kmeans: KMeansSteps
    engines: Mapping[str, tuple[str, ...]]
    online: Mapping[str, Any]
    offline: Mapping[str, Any]
    result: Mapping[str, Any]
    done: int
    state: str
    openings: Sequence[Mapping[str, Any]]
    steps: tuple[JobStep, ...]


def write_report(config: JobConfig, base: Path | None = None) -> Path:
    """Write the page of a run, finished or not; `base` is the folder of its configuration."""
    page = report_page(config, base)
    with atomic_write(config.run_folder.html_report) as part:
        part.touch(mode=0o600)
        part.write_text(page, encoding="utf-8")
    return config.run_folder.html_report


def report_page(config: JobConfig, base: Path | None = None) -> str:
    """Make the page; `base` is the folder of the configuration."""
    return _template().render(_template_values(_read_run(config), base))


@cache
def _template() -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"duration": format_duration, "size": format_size, "number": "{:,}".format}
    environment.filters |= {"time": format_time, "period": format_period}
    return environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))


def _read_run(config: JobConfig) -> RunFacts:
    job, folder = config.kmeans_with_data, config.run_folder
    online = RunReport(folder).content
    saved, result = read_json(folder.finished), read_result(folder)
    if saved is None and not folder.report.exists():
        raise StorageError(f"run {config.run!r} of {config.party} has not begun: there is nothing to report yet")
    if saved is not None and saved["job"] != public_job(config):
        raise ConfigError(f"the configuration has changed since run {config.run!r}: only kmeans.reveal may differ")
    manifest = read_json(config.store_folder.manifest) or {}
    chosen = tuple(tuple(each) for each in manifest.get("engines", ())) or requested_engines(config)
    kmeans, engines = kmeans_steps(config, chosen), dict(zip(config.parties, chosen, strict=False))
    planned = {"when": None, "policy": job.reveal.model_dump(mode="json")}
    openings = online.get("openings") or ([planned] if result else [])
    done = max([0, *(each["done"] for each in online["iterations"])])
    state = "finished" if folder.farewell.exists() else "complete here" if result else "not finished"
    steps = _steps(job, kmeans, openings or [planned])
    if result:
        ran = stages_by_step(online["stages"])
        steps = tuple(step for step in steps if step.name in ran)
    offline = RunReport(config.offline().run_folder).content
    return RunFacts(config, job, kmeans, engines, online, offline, result, done, state, openings, steps)


def _steps(job: KMeansConfig, kmeans: KMeansSteps, openings: Sequence[Mapping[str, Any]]) -> tuple[JobStep, ...]:
    named = {name: frozenset({0} if any(each["policy"].get(name) for each in openings) else ()) for name in REVEALED}
    policy = RevealPolicy(kmeans.layout, **named, all_columns=False, all_contributions=False, name="")
    return trace_job(kmeans, statistics_method(job), policy).steps


def _template_values(facts: RunFacts, base: Path | None) -> dict[str, Any]:
    config, online, offline = facts.config, facts.online, facts.offline
    phases = {"Online": costs_by_phase(online["stages"], facts.steps)}
    if offline["seconds"]:
        phases = {"Offline": costs_by_phase(offline["stages"], facts.steps), **phases}
    seconds = {"Offline": offline["seconds"], "Online": online["seconds"]}
    return {
        **vars(facts),
        "one_call": runs_in_one_call(config, facts.kmeans),
        "total": StageCosts.of(online["stages"]),
        "total_offline": StageCosts.of(offline["stages"]),
        "files": _files(config.run_folder),
        "sizes": _cluster_sizes(facts),
        "withheld": _withheld(facts),
        "contributions": _contributions(facts),
        "profiles": _profiles(facts),
        "histogram": _score_histogram(facts.config.run_folder),
        "disclosures": _disclosures(facts),
        "pipelines": _pipelines(online["iterations"]),
        "fingerprints": _fingerprints(config),
        "yaml": redacted_config(config, base),
        "times": time_charts({name: (seconds[name], costs) for name, costs in phases.items()}),
        "traffic": traffic_charts(phases),
        "steps": _step_values(facts),
        "graph": graph_rows(facts.steps),
    }


def _withheld(facts: RunFacts) -> str:
    closed = facts.result.get("withheld")
    return withheld_centroids(facts.config, closed) if closed else ""


def _step_values(facts: RunFacts) -> dict[str, dict[str, Any]]:
    """The costs of each step and of its stages; also of a step that the job does not know."""
    stages, known = stages_by_step(facts.online["stages"]), {step.name: step for step in facts.steps}
    return {
        name: {
            "name": name,
            "computes": known[name].computes if name in known else "",
            "phase": known[name].phase if name in known else "",
            "cost": StageCosts.of(stages.get(name, {})),
            "stages": {stage: StageCosts.of({stage: counts}) for stage, counts in stages.get(name, {}).items()},
            "message_contents": known[name].message_contents if name in known else [],
        }
        for name in (*known, *(name for name in stages if name not in known))
    }


def _disclosures(facts: RunFacts) -> list[Disclosure]:
    config = facts.config
    folder = config.offline().run_folder
    sent = [read_json(folder.terms(config.party, peer)) or {} for peer in config.peers]
    offline = [ANNOUNCED_COSTS] if any("costs" in terms.get("announced", {}) for terms in sent) else []
    offline += [PUBLIC_KEY] if facts.kmeans.engines.cipher else []
    return disclosures(config, facts.job, facts.steps, facts.openings, facts.done, offline)


def _files(folder: RunFolder) -> list[tuple[str, str, int]]:
    """Name, content and size of the run's result files."""
    contents = {folder.assignments: "cluster of each row", folder.centroids: "centroids, in original units"}
    contents |= {folder.scores: "squared distance of each row to its centroid, in normalised units"}
    contents |= {folder.outliers: "the outliers", folder.explanations: "what each column adds to the outliers’ scores"}
    contents |= {folder.profiles: "sizes, means and spreads of the clusters"}
    contents |= {folder.result: "what was opened to this party", folder.report: "the numbers of this report"}
    return [(file.name, content, file.stat().st_size) for file, content in contents.items() if file.exists()]


def _cluster_sizes(facts: RunFacts) -> list[tuple[int, int, Markup]]:
    """Number, rows and bar of each cluster, if the rows' clusters were opened to this party."""
    folder = facts.config.run_folder
    if "assignments" not in facts.result or not folder.assignments.exists():
        return []
    counts = count_rows(folder, facts.job.clusters)
    largest = float(counts.max())
    return [
        (number, int(count), draw_bar([("computed", float(count))], largest, "", f"cluster {number}: {count:,} rows"))
        for number, count in enumerate(counts)
    ]


def _profiles(facts: RunFacts) -> list[tuple[str, ...]]:
    """Number, size, rate of the label and remarkable columns of each cluster, if they were opened to this party."""
    folder = facts.config.run_folder
    return profile_lines(folder) if "profiles" in facts.result and folder.profiles.exists() else []


def _contributions(facts: RunFacts) -> list[tuple[str, str, Markup]]:
    """Name, mean part of the outliers' scores, and bar of the columns that add most to them."""
    folder = facts.config.run_folder
    if "explanations" not in facts.result or not folder.explanations.exists():
        return []
    parts = mean_contributions(folder)[:_COLUMNS]
    largest = max((part for _, part in parts), default=0.0)
    return [
        (name, f"{part:.4g}", draw_bar([("computed", part)], largest, "", f"{name}: {part:.4g}"))
        for name, part in parts
    ]


def _score_histogram(folder: RunFolder) -> list[tuple[str, int, Markup]]:
    """Range, rows and bar of each bin of the scores that were opened to this party."""
    counts, edges = count_scores(folder)
    bins = [f"{low:.3g} to {high:.3g}" for low, high in pairwise(edges)]
    largest = float(max(counts, default=0))
    return [
        (name, count, draw_bar([("computed", float(count))], largest, "", f"score {name}: {count:,} rows"))
        for name, count in zip(bins, counts, strict=True)
    ]


def _pipelines(iterations: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One line for each pipeline: its iterations, and the time of one of them."""
    befores = [0, *(each["done"] for each in iterations)]
    lines = [
        {**each, "first": before + 1, "count": each["done"] - before}
        for before, each in zip(befores, iterations, strict=False)
        if each["done"] > before
    ]
    slowest = max((line["seconds"] / line["count"] for line in lines), default=0.0)
    for line in lines:
        seconds = line["seconds"] / line["count"]
        line["picture"] = draw_bar([("computed", seconds)], slowest, "", f"{format_duration(seconds)} an iteration")
    return lines


def _fingerprints(config: JobConfig) -> dict[str, str]:
    """The fingerprint of everyone's certificate, as `veilmeans config keys` prints it."""
    files = {config.party: config.certificate, **{name: peer.certificate for name, peer in config.peers.items()}}
    fingerprints = dict.fromkeys(files, "cannot be read")
    for name, file in files.items():
        with suppress(OSError, ValueError):
            fingerprints[name] = fingerprint(file.read_bytes())
    return fingerprints
