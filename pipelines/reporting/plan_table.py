"""The command `veilmeans plan`: a plan, or a plan beside a run, as text and as JSON."""

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import typer
from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table

from veilmeans.io.storage.atomic_files import write_json
from veilmeans.pipelines.planning.job_plan import plan_ahead
from veilmeans.pipelines.planning.plan_schema import JobPlan, Json, Offline, Seconds, SelectedEngine, Traffic
from veilmeans.pipelines.planning.plan_vs_run import _TIMES, PlanVsRun, Side, compare_with_run
from veilmeans.pipelines.planning.units import seconds, short, size
from veilmeans.schemas.config import JobConfig
from veilmeans.transforms.kmeans.steps import Step


def show_comparison(found: PlanVsRun) -> RenderableType:
    """Two tables: what crossed, and the seconds."""
    title = f"{found.party} in run {found.run!r}, {found.iterations:,} iterations: planned, measured"
    crossed = table("step", "", "rounds", "messages", "sent", "±%", "received", "±%", title=title)
    spent = table("step", "planned", "computed", "waited", "handed over", title="seconds; planned ones are estimates")
    for pair in (*found.steps, found.total):
        if pair is found.total:
            crossed.add_section()
            spent.add_section()
        crossed.add_row(pair.name, "planned", *_row(pair.planned, None, None))
        off = pair.difference("bytes_sent"), pair.difference("bytes_received")
        crossed.add_row("", "measured", *_row(pair.measured, *map(_percent, off)))
        planned = pair.planned.seconds.get("computed", 0.0)
        spent.add_row(pair.name, seconds(planned), *(seconds(pair.measured.seconds[name]) for name in _TIMES))
    links = [f"{name.upper()} {seconds(value)} s" for name, value in found.total.planned.seconds.items() if value]
    took = f"the run took {seconds(found.seconds)} s, what is done between rounds included"
    return Group(crossed, spent, f"{took}; planned: {', '.join(links[1:])}")


def _row(side: Side, sent: str | None, received: str | None) -> tuple[Any, ...]:
    counts = f"{side.rounds:,}", f"{side.messages:,}"
    return (*counts, size(side.bytes_sent), sent, size(side.bytes_received), received)


def _percent(value: float | None) -> str:
    return "new" if value is None else f"{value:+.1f}" if value else "0"


_THIS = "."
"""The configured run."""


def run_plan(config: JobConfig, json_file: str | None, run: str | None) -> None:
    """Text to the terminal, and JSON to a file; only JSON, if its file is "-"."""
    content, text = _found(config, run)
    if json_file == "-":
        typer.echo(json.dumps(content, indent=2, ensure_ascii=False))
        return
    if json_file is not None:
        write_json(Path(json_file), content)
    Console().print(text)


def _found(config: JobConfig, run: str | None) -> tuple[Json, RenderableType]:
    if run is None:
        plan = plan_ahead(config)
        return plan.to_json(), show_plan(plan)
    compared = compare_with_run(config, None if run == _THIS else run)
    return compared.to_json(), show_comparison(compared)


_WHEN = {"before": "opened before the first", "iteration": "opened in each iteration", "end": "opened at the end"}


def plain_table(title: str) -> Table:
    """Without lines between columns."""
    look = {"box": box.SIMPLE_HEAD, "title_justify": "left", "title_style": "bold", "collapse_padding": True}
    return Table(title=title, pad_edge=False, **look)  # type: ignore[arg-type]


def table(*columns: str, title: str) -> Table:
    """The first column is text, the others are numbers."""
    result = plain_table(title)
    for number, column in enumerate(columns):
        result.add_column(column, justify="right" if number else "left", no_wrap=number > 0 or len(columns) > 2)
    return result


def show_plan(plan: JobPlan) -> RenderableType:
    """All of it."""
    return Group(
        *_heading(plan),
        "",
        *_graph(plan),
        "",
        _steps(plan),
        *_peers(plan),
        _kept(plan),
        _engines(plan.engines),
        *_opened(plan),
    )


def _heading(plan: JobPlan) -> list[str]:
    job = plan.job
    once = "all in one call" if job["model"] else "one call an iteration"
    how = once if job["rounds"] == "whole" else "a Beam stage for each round"
    what = f"at most {job['max_iter']:,} iterations"
    if job["model"]:
        what = f"new rows in the clusters of {job['model']!r}"
    links = [
        f"{_link(name)} {short(each['rate_mbps'])} Mbit/s, {short(each['round_trip_ms'])} ms"
        for name, each in plan.links.items()
    ]
    return [
        f"{plan.party} in run {plan.run!r} with {', '.join(plan.peers)}",
        f"{job['rows']:,} rows × {job['columns']:,} columns, {job['layout']}; {job['clusters']:,} clusters, {what}",
        f"shards of rows {job['shards']:,}, of columns {job['column_shards']:,}; on {job['runner']}, {how}",
        f"comparisons look at {job['compared_bits']} of {job['compare_bits']} bits",
        "times are estimates, by this machine's pace and a link's rate and round trip:",
        f"  {'; '.join(links)}",
    ]


def _graph(plan: JobPlan) -> list[str]:
    """One line for each part of the run: ─▶ leads to what waits for it."""
    labels = {"once": "once", "iteration": f"≤ {plan.job['max_iter']:,} times", "end": "end"}
    lines = []
    steps = [each.step for each in plan.steps]
    for (when, phase), members in groupby(steps, key=lambda step: (step.when, step.phase)):
        lines.append(f"{labels[when]:>12}  {phase:2}  {_line(list(members))}")
    return lines


def _line(steps: Sequence[Step]) -> str:
    """Steps of one part, those that wait for others after them."""
    level: dict[str, int] = {}
    for step in steps:
        level[step.name] = 1 + max((level[name] for name in step.after if name in level), default=-1)
    ranks = [[name for name in level if level[name] == rank] for rank in sorted(set(level.values()))]
    return " ─▶ ".join(", ".join(rank) for rank in ranks)


def _steps(plan: JobPlan) -> Table:
    links = list(plan.links)
    found = table(
        "step", "phase", "rounds", "sent", "received", *(f"{_link(name)} s" for name in links),
        title=f"what {plan.party} sends and receives: shares, masked or encrypted",
    )  # fmt: skip
    for when, members in groupby(plan.steps, key=lambda each: each.step.when):
        steps = list(members)
        for each in steps:
            _add(found, each.step.name, each.step.phase, each.each, each.seconds, links)
        found.add_section()
        if when == "iteration":
            _add(found, "an iteration", "", *plan.iteration, links)
            found.add_section()
    every = "all" if plan.job["model"] else f"all, {plan.job['max_iter']:,} iterations"
    _add(found, every, "", plan.traffic(), plan.seconds(), links)
    return found


def _link(name: str) -> str:
    return {"lan": "LAN", "wan": "WAN"}.get(name, "link")


def _add(found: Table, name: str, phase: str, traffic: Traffic, time: Seconds, links: Iterable[str]) -> None:
    moved = f"{traffic.rounds:,}", size(traffic.bytes_sent), size(traffic.bytes_received)
    found.add_row(name, phase, *moved, *(seconds(time.links[link]) for link in links))


def _peers(plan: JobPlan) -> list[RenderableType]:
    """By peer, where there are several."""
    if len(plan.peers) < 2:
        return []
    found, total = table("peer", "sent", "received", title="by peer, in all"), plan.traffic()
    for peer in plan.peers:
        found.add_row(peer, size(total.sent.get(peer, 0)), size(total.received.get(peer, 0)))
    return [found]


def _kept(plan: JobPlan) -> Table:
    found = table("what", "size", title="offline, and on disk")
    if plan.offline is not None:
        for what, amount in _store(plan.offline):
            found.add_row(what, amount)
        found.add_section()
    disk = plan.disk.to_json()
    told = {"prepared": "prepared data, about", "inbox": "messages at once, about", "total": "disk in all, about"}
    for name, amount in disk.items():
        found.add_row(told.get(name, name), size(amount))
    return found


def _store(offline: Offline) -> list[tuple[str, str]]:
    runs = f"{offline.runs:,} run{'s' * (offline.runs != 1)} of {offline.iterations:,} iterations"
    lines = [(f"from {offline.dealer or 'the dealer'}, for {runs}", size(offline.bytes_received))]
    lines += [(f"  {each.kind}", f"{each.count:,} {each.unit}") for each in offline.triples]
    if offline.ciphertexts:
        lines.append((f"ciphertexts made here: {offline.ciphertexts:,}", size(offline.cipher_bytes)))
    return lines


def _engines(engines: Sequence[SelectedEngine]) -> Table:
    """What each engine would take in an iteration, and what decides."""
    found = plain_table("engines of the cross products: an iteration online, then offline")
    for column in ("product", "beaver", "he", "engine and why"):
        found.add_column(column)
    for each in engines:
        cells = [_cell(each.estimates.get(name)) for name in ("beaver", "he")]
        found.add_row(f"{each.party} {each.product}", *cells, f"{each.engine}: {each.why}")
    return found


def _cell(estimate: Mapping[str, float] | None) -> str:
    if estimate is None:
        return ""
    online = f"{seconds(estimate['seconds'])} s, {size(estimate['bytes'])}"
    return f"{online}\n{seconds(estimate['offline_seconds'])} s, {size(estimate['offline_bytes'])}"


def _opened(plan: JobPlan) -> list[str]:
    lines = [f"{_WHEN[each.when]}: {each.what} to {_names(each.to, plan)}" for each in plan.opened]
    return lines or ["nothing will be opened"]


def _names(to: Sequence[str], plan: JobPlan) -> str:
    everyone = {plan.party, *plan.peers} == {*to}
    return "all" if everyone and len(to) > 2 else ", ".join(to)
