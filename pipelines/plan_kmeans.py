"""What a run would do: `veilmeans plan` from the configuration alone, `train --dry-run` from data and store, too.

Nothing is sent. Before there is a store, `auto` goes by the costs of this machine; those of the slowest party decide
when it is made.
"""

from rich.console import Group, RenderableType
from rich.table import Table

from veilmeans.io.connect import load_identity, load_peer_certificates
from veilmeans.pipelines.aggregate import opened_statistics
from veilmeans.pipelines.choice import explain
from veilmeans.pipelines.jobs import job_plan, kmeans_of
from veilmeans.pipelines.prepare import runs_whole
from veilmeans.pipelines.settle import choices, own_costs
from veilmeans.pipelines.train import get_ready
from veilmeans.pipelines.triples import settled_engines
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.jobs import KMeansJob
from veilmeans.transforms.kmeans import KMeans
from veilmeans.transforms.plan import Plan

_STAGES = (
    "extremes",
    "operand",
    "norms",
    "encrypt",
    "distance",
    "assign",
    "update",
    "unmask",
    "reciprocal",
    "quotient",
    "finish",
)
"""In the order in which they run."""
_ONCE = ("extremes", "operand", "norms")


def plan_kmeans(config: JobConfig) -> RenderableType:
    """Check configuration, certificates, data and store; then the stages, their rounds and what each of them sends."""
    load_identity(config)
    load_peer_certificates(config)
    ready = get_ready(config)
    plan = job_plan(config, settled_engines(config, ready.store))
    return Group(*_heading(config, ready.kmeans), _table(config, plan), *_opened(config))


def plan_ahead(config: JobConfig) -> RenderableType:
    """From the configuration alone: the engines and why, the stages, what each of them sends, what is opened."""
    found = choices(config, [own_costs(config)])
    chosen = tuple((each.distance, each.update) for each in found.values())
    kmeans = kmeans_of(config, chosen)
    return Group(*_heading(config, kmeans), explain(found), _table(config, job_plan(config, chosen)), *_opened(config))


def _heading(config: JobConfig, kmeans: KMeans) -> list[str]:
    job, layout = config.needed_kmeans, kmeans.layout
    tree = kmeans.tree
    kept = f"{tree.compare_bits - tree.drop} of {tree.compare_bits} bits"
    how = "one call an iteration" if runs_whole(config, kmeans) else "a Beam stage for each round"
    return [
        f"{config.party} in run {config.run!r} with {', '.join(config.online().peers)}",
        f"{layout.total_rows:,} rows × {layout.total_features:,} columns, {job.layout}; "
        f"{kmeans.k:,} clusters, {_what(job)}",
        f"{len(layout.places()):,} shards on {config.engine.runner}, {how}; comparisons look at {kept}",
    ]


def _what(job: KMeansJob) -> str:
    if job.predict is not None:
        return f"those of the model {job.predict.model!r}, to which rows are assigned once"
    return f"at most {job.max_iter:,} iterations"


def _table(config: JobConfig, plan: Plan) -> Table:
    table = Table("stage", "rounds", "MB sent in an iteration", title=f"what leaves {config.party}, all of it masked")
    me, counted = config.me.index, plan.counted(0)
    for name in _STAGES:
        found = [(count, stage) for count, stage in counted if stage.name.split(".")[0] == name]
        if found:
            rounds = len({stage.name for _, stage in found})
            sent = sum(count * stage.sent[me] for count, stage in found)
            table.add_row(f"{name} (once)" if name in _ONCE else name, f"{rounds}", f"{sent / 1e6:,.3f}")
    return table


def _opened(config: JobConfig) -> list[str]:
    """What will be opened, and to whom."""
    job = config.needed_kmeans
    lines = (
        [f"opened in each iteration: one bit, whether the centroids moved by less than {job.tol:g}"]
        if job.tol and job.predict is None
        else []
    )
    if job.aggregates:
        lines.append(f"opened before the first: {opened_statistics(job)} of each column, to all")
    reveal = job.reveal.model_dump(include={"assignments", "centroids", "inertia"})
    lines += [f"opened at the end: {what} to {', '.join(who)}" for what, who in reveal.items() if who]
    return lines or ["nothing will be opened"]
