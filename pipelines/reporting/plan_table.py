"""The command `veilmeans plan`: a plan, or a plan beside a run, as tables."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table

from veilmeans.io.exchange.link_shaping import Link
from veilmeans.pipelines.planning.job_plan import plan_ahead
from veilmeans.pipelines.planning.plan_schema import JobPlan, OfflinePlan, SelectedEngine, Traffic
from veilmeans.pipelines.planning.plan_vs_run import MEASURED_TIMES, PlanVsRun, StepTotals, compare_with_run
from veilmeans.pipelines.planning.sweep_plan import SweepPlan, plan_sweep
from veilmeans.pipelines.planning.units import format_number, format_seconds, format_size
from veilmeans.pipelines.reporting.step_graph import graph_rows
from veilmeans.pipelines.reporting.terminal import Terminal
from veilmeans.schemas.config import JobConfig

_CONFIGURED_RUN = "."
_MADE = {"extend": "OTs", "correct": "corrections of OTs", "operands": "Enc(U)", "responses": "Enc(U·V + R)"}
"""The rounds of making a store without a dealer; those that are not here are of the set-up."""
_WHEN_OPENED = {"before": "before the first iteration", "iteration": "in each iteration", "end": "at the end"}


def run_plan(config: JobConfig, run: str | None) -> JobPlan | PlanVsRun | SweepPlan:
    """Print the plan, or the plan beside a run, and return it."""
    plan: JobPlan | PlanVsRun | SweepPlan
    if config.required_kmeans.sweep is not None:
        plan = plan_sweep(config)
    else:
        plan = plan_ahead(config) if run is None else compare_with_run(config, None if run == _CONFIGURED_RUN else run)
    Terminal().print(_shown(plan))
    return plan


def _shown(plan: JobPlan | PlanVsRun | SweepPlan) -> RenderableType:
    if isinstance(plan, SweepPlan):
        return show_sweep_plan(plan)
    return show_plan(plan) if isinstance(plan, JobPlan) else show_comparison(plan)


def show_sweep_plan(plan: SweepPlan) -> RenderableType:
    """One line for each training, and the triple store of all."""
    links = [f"{_link_name(name)} s" for name in plan.links]
    title = (
        f"{plan.party} in sweep {plan.run!r}: trainings by their number of clusters, of as many iterations as may be"
    )
    table = _number_table("clusters", "rounds", "sent", "received", *links, title=title)

    def add(name: str, traffic: Traffic) -> None:
        sizes = format_size(traffic.bytes_sent), format_size(traffic.bytes_received)
        seconds = [format_seconds(traffic.seconds_on(link)) for link in plan.links.values()]
        table.add_row(name, f"{traffic.waits:,}", *sizes, *seconds)

    for clusters, each in plan.trainings.items():
        add(f"{clusters:,}", each.traffic())
    table.add_section()
    add("all", plan.traffic())
    offline = _number_table("what", "size", title="one triple store for all trainings")
    if plan.offline is not None:
        _add_offline_rows(offline, plan.offline, plan.links)
        offline.add_row("triple store", format_size(plan.offline.bytes_stored))
    largest = plan.trainings[max(plan.trainings)]
    opened = [f"of each training, {line}" for line in _openings(largest)]
    return Group(table, offline, _engine_table(largest.engines), *opened)


def show_comparison(compared: PlanVsRun) -> RenderableType:
    """Two tables: messages and bytes, and seconds."""
    title = f"{compared.party} in run {compared.run!r}, {compared.iterations:,} iterations: planned, measured"
    traffic = _number_table("step", "", "rounds", "messages", "sent", "±%", "received", "±%", title=title)
    links = list(compared.total.planned.seconds)
    times = _number_table(
        "step", *map(_link_name, links), *MEASURED_TIMES, title="seconds: planned of each link alone, then measured"
    )
    for step in (*compared.steps, compared.total):
        if step is compared.total:
            traffic.add_section()
            times.add_section()
        traffic.add_row(step.name, "planned", *_traffic_cells(step.planned, None, None))
        differences = step.difference("bytes_sent"), step.difference("bytes_received")
        traffic.add_row("", "measured", *_traffic_cells(step.measured, *map(_percent, differences)))
        planned = [step.planned.seconds.get(link, 0.0) for link in links]
        measured = [step.measured.seconds[name] for name in MEASURED_TIMES]
        times.add_row(step.name, *map(format_seconds, (*planned, *measured)))
    return Group(traffic, times, f"the run took {format_seconds(compared.seconds)} s, with all work between rounds")


def _traffic_cells(totals: StepTotals, sent: str | None, received: str | None) -> tuple[Any, ...]:
    counts = f"{totals.rounds:,}", f"{totals.messages:,}"
    return (*counts, format_size(totals.bytes_sent), sent, format_size(totals.bytes_received), received)


def _percent(value: float | None) -> str:
    return "new" if value is None else f"{value:+.1f}" if value else "0"


def _text_table(*columns: str, title: str) -> Table:
    """A table without lines between columns."""
    look = {"box": box.SIMPLE_HEAD, "title_justify": "left", "title_style": "bold", "collapse_padding": True}
    return Table(*columns, title=title, pad_edge=False, **look)  # type: ignore[arg-type]


def _number_table(*columns: str, title: str) -> Table:
    """A table whose first column is text; the others are numbers."""
    table = _text_table(title=title)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=number > 0 or len(columns) > 2)
    return table


def show_plan(plan: JobPlan) -> RenderableType:
    """The plan as text and tables."""
    tables = _step_table(plan), *_peer_table(plan), _disk_table(plan), _engine_table(plan.engines)
    return Group(*_heading(plan), "", *_graph(plan), "", *tables, *_openings(plan))


def _heading(plan: JobPlan) -> list[str]:
    job = plan.job
    once = "all in one call" if job["model"] else "one call an iteration"
    how = once if job["rounds"] == "one_call" else "a Beam stage for each round"
    what = f"at most {job['max_iter']:,} iterations"
    if job["model"]:
        what = f"new rows in the clusters of {job['model']!r}"
    links = [
        f"{_link_name(name)} {format_number(link.rate / 125e3)} Mbit/s, {format_number(link.round_trip * 1e3)} ms"
        for name, link in plan.links.items()
    ]
    first = f"no triple store {job['makes_store']!r} yet: the run makes it first (`veilmeans offline`: ahead of time)"
    return [
        f"{plan.party} in run {plan.run!r} with {', '.join(plan.peers)}",
        *([first] if job["makes_store"] else []),
        f"{job['rows']:,} rows × {job['columns']:,} columns, {job['layout']}; {job['clusters']:,} clusters, {what}",
        *_padding(job),
        f"row shards: {job['shards']:,}, column shards: {job['column_shards']:,}; on {job['runner']}, {how}",
        f"comparisons use {job['compared_bits']} of {job['compare_bits']} bits; assignment by {job['assignment']}",
        "seconds on a link: rounds × (half a round trip + 4 ms) + bytes ÷ rate; rounds beside others count once:",
        f"  {'; '.join(links)}",
    ]


def _padding(job: Mapping[str, Any]) -> list[str]:
    """Say how many rows are computed for nothing, where the triple store is for more than the run has."""
    if not job["padding"]:
        return []
    return [f"and {job['padding']:,} rows of weight 0, which fill the last row shards up to those of the triple store"]


def _graph(plan: JobPlan) -> list[str]:
    """One line for each phase of the run: ─▶ leads to what waits for it."""
    labels = {"once": "once", "iteration": f"≤ {plan.job['max_iter']:,} times", "end": "end"}
    labels["seed"] = f"{plan.job['seeds']:,} times"
    return [
        f"{labels[row.when]:>12}  {row.phase:2}  "
        + " ─▶ ".join(", ".join(step.name for step in rank) for rank in row.ranks)
        for row in graph_rows(each.step for each in plan.steps)
    ]


def _step_table(plan: JobPlan) -> Table:
    table = _number_table(
        "step", "phase", "rounds", "sent", "received", *(f"{_link_name(name)} s" for name in plan.links),
        title=f"messages of {plan.party}: shares, masked or encrypted",
    )  # fmt: skip

    def add(name: str, phase: str, rounds: int, traffic: Traffic) -> None:
        sizes = format_size(traffic.bytes_sent), format_size(traffic.bytes_received)
        table.add_row(name, phase, f"{rounds:,}", *sizes, *map(format_seconds, plan.seconds(traffic).values()))

    parts = {"iteration": "an iteration", "later": "an iteration", "seed": f"one of {plan.job['seeds']:,} centroids"}
    for part, steps in groupby(plan.steps, key=lambda each: parts.get(each.step.when)):
        members = list(steps)
        for each in members:
            add(each.step.name, each.step.phase, each.each.rounds, each.each)
        table.add_section()
        if part is not None:
            traffic = sum((each.each for each in members), Traffic())
            add(part, "", traffic.waits, traffic)
            table.add_section()
    total = "all" if plan.job["model"] else f"all, {plan.job['max_iter']:,} iterations"
    add(total, "", plan.traffic().waits, plan.traffic())
    return table


def _link_name(name: str) -> str:
    return {"lan": "LAN", "wan": "WAN"}.get(name, "link")


def _peer_table(plan: JobPlan) -> list[RenderableType]:
    """A table by peer, if there are several."""
    if len(plan.peers) < 2:
        return []
    table, total = _number_table("peer", "sent", "received", title="total by peer"), plan.traffic()
    for peer in plan.peers:
        table.add_row(peer, format_size(total.sent.get(peer, 0)), format_size(total.received.get(peer, 0)))
    return [table]


def _disk_table(plan: JobPlan) -> Table:
    table = _number_table("what", "size", title="offline, and on disk")
    if plan.offline is not None:
        _add_offline_rows(table, plan.offline, plan.links)
        table.add_section()
    labels = {"store": "triple store", "prepared": "prepared data, about"}
    labels |= {"inbox": "inbox at its largest, about", "total": "total on disk, about"}
    for name, amount in plan.disk.to_json().items():
        table.add_row(labels.get(name, name), format_size(amount))
    return table


def _add_offline_rows(table: Table, offline: OfflinePlan, links: Mapping[str, Link]) -> None:
    runs = f"{offline.runs:,} run{'s' * (offline.runs != 1)} of {offline.iterations:,} iterations"
    if offline.provider == "dealer":
        table.add_row(f"from {offline.dealer or 'the dealer'}, for {runs}", format_size(offline.bytes_received))
    else:
        _add_made_rows(table, offline, links, runs)
    for each in offline.triples:
        table.add_row(f"  {each.kind}", f"{each.count:,} {each.unit}")
    if offline.ciphertexts:
        table.add_row(f"ciphertexts made here: {offline.ciphertexts:,}", format_size(offline.cipher_bytes))


def _add_made_rows(table: Table, offline: OfflinePlan, links: Mapping[str, Link], runs: str) -> None:
    """The rounds of making a store without a dealer; those of the set-up together."""
    sizes = f"{format_size(offline.bytes_sent)} sent, {format_size(offline.bytes_received)} received"
    table.add_row(f"made by {offline.provider} in {offline.rounds} rounds, for {runs}", sizes)
    sums: dict[str, list[int]] = {}
    for each in offline.made:
        sent_received = sums.setdefault(_MADE.get(each.name, "set-up"), [0, 0])
        sent_received[0] += each.bytes_sent
        sent_received[1] += each.bytes_received
    for name, (sent, received) in sums.items():
        table.add_row(f"  {name}", f"{format_size(sent)}, {format_size(received)}")
    seconds = [f"{_link_name(name)} {format_seconds(offline.seconds_on(link))} s" for name, link in links.items()]
    table.add_row("  on a link", ", ".join(seconds))
    table.add_row(f"  computing {offline.cots:,} OTs, about", f"{format_seconds(offline.computing)} s")
    table.add_row("  on disk meanwhile, about", format_size(offline.bytes_making))


def _engine_table(engines: Sequence[SelectedEngine]) -> Table:
    """The engine of each product and the reason; with costs, where the engine depends on them."""
    estimated = [name for name in ("beaver", "he") if any(name in each.estimates for each in engines)]
    note = ": seconds and bytes of an iteration, bytes stored offline" if estimated else ""
    table = _text_table("product", *estimated, "engine and reason", title=f"engines of the cross products{note}")
    for each in engines:
        costs = [_cost_cell(each.estimates.get(name)) for name in estimated]
        table.add_row(f"{each.party} {each.product}", *costs, f"{each.engine}: {each.reason}")
    return table


def _cost_cell(estimate: Mapping[str, float] | None) -> str:
    if estimate is None:
        return ""
    online = f"{format_seconds(estimate['seconds'])} s, {format_size(estimate['bytes'])}"
    return f"{online}\n{format_size(estimate['offline_bytes'])}"


def _openings(plan: JobPlan) -> list[str]:
    lines = []
    for each in plan.opened:
        to_all = {plan.party, *plan.peers} == {*each.to} and len(plan.peers) > 1
        lines.append(f"opened {_WHEN_OPENED[each.when]}: {each.what} to {'all' if to_all else ', '.join(each.to)}")
    return lines or ["nothing will be opened"]
