"""The tables of rounds and bytes in docs/protocol.md and docs/kmeans.md, computed from traces of the protocols.

`python docs/cost_tables.py` writes them into the pages, each below its marker, `<!-- cost table: NAME -->`.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from veilmeans.crypto.bits import word_count
from veilmeans.pipelines.planning.planned_bytes import waits_of
from veilmeans.pipelines.session.kmeans_from_config import kmeans_steps, statistics_method
from veilmeans.pipelines.session.result_opening import policy_of
from veilmeans.schemas.config import JobConfig
from veilmeans.transforms.kmeans.job_trace import trace_job
from veilmeans.transforms.offline.dealer import expected_corrections
from veilmeans.transforms.offline.traced_job import JobStep, TracedJob
from veilmeans.transforms.primitives.bit_injection import b2a, inject
from veilmeans.transforms.primitives.compare import Comparison, sign
from veilmeans.transforms.primitives.multiply import multiply
from veilmeans.transforms.primitives.truncate import Truncation, truncate
from veilmeans.transforms.rounds.executor import Over
from veilmeans.transforms.rounds.protocol import Protocol
from veilmeans.transforms.rounds.trace import StageTrace, trace

DOCS = Path(__file__).parent
PARTIES = ("payco", "shop")
ROWS, CLUSTERS = 16_384, (2, 5, 10)
COLUMNS = {"payco": 2, "shop": 3}
_MARKED = re.compile(r"(<!-- cost table: ([\w ]+) -->\n)(?:\|.*\n)*")
_VALUES = 64
_SHAPES = {"x": ((_VALUES,), "uint64"), "y": ((_VALUES,), "uint64"), "b": ((word_count(_VALUES),), "uint64")}
Row = Sequence[object]


def with_tables(page: str) -> str:
    """Replace every table of a page that stands below a marker."""
    return _MARKED.sub(lambda marked: marked[1] + TABLES[marked[2]](), page)


def _markdown(head: Row, rows: Iterable[Row]) -> str:
    lines = [f"| {' | '.join(_cell(each) for each in line)} |\n" for line in (head, *rows)]
    return "".join([lines[0], f"|{'---|' * len(head)}\n", *lines[1:]])


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    return f"{value:,}" if isinstance(value, int) else str(value)


# Arithmetic on shares.
def _primitives(parties: int) -> dict[str, Protocol]:
    comparisons = {f"CMP, {w} bits": sign(Comparison("x", "s", compare_bits=w), parties) for w in (8, 16, 32, 64)}
    return {
        "SMUL": multiply("x", "y", "z"),
        **comparisons,
        "B2A": Protocol("b2a", (b2a("b", "x", "z"),)),
        "MUX, bit injection": Protocol("mux", (inject("b", "x", "z"),)),
        "truncation, off by at most one": truncate(Truncation("x", 20)),
    }


def _primitive_costs(parties: int) -> dict[str, tuple[int, float]]:
    """Rounds, and bytes for each value that a party sends to each peer."""
    return {
        name: (_rounds(stages), sum(stage.sent[0] for stage in stages) / _VALUES / (parties - 1))
        for name, protocol in _primitives(parties).items()
        for stages in [trace(protocol, [_SHAPES] * parties)]
    }


def _rounds(stages: Iterable[StageTrace]) -> int:
    """The number of rounds in which anybody sends anything."""
    return sum(1 for stage in stages if any(stage.sent))


def primitives_table() -> str:
    costs = [_primitive_costs(parties) for parties in (2, 3, 4)]
    head = ["protocol", *(f"{what}, M = {m}" for m in (2, 3, 4) for what in ("rounds", "bytes"))]
    return _markdown(head, [[name, *(cell for each in costs for cell in each[name])] for name in costs[0]])


# Steps of K-means.
def example(clusters: int, **fields: Any) -> JobConfig:
    """Two parties and a dealer, 16,384 rows in one row shard, 2 and 3 columns; everything is opened to both."""
    paths = {name: name for name in ("certificate", "key", "seed", "storage")}
    peers = {name: {"certificate": f"{name}.crt", "address": f"{name}:7101"} for name in ("shop", "dealer")}
    job = {
        "layout": "vertical",
        "rows": ROWS,
        "features": COLUMNS,
        "clusters": clusters,
        "products": "beaver",
        "reveal": {"assignments": PARTIES, "centroids": PARTIES, "inertia": PARTIES},
        **fields,
    }
    content = {"party": "payco", "run": "example", "parties": PARTIES, "dealer": "dealer", "listen": "payco:7101"}
    return JobConfig.model_validate({**content, **paths, "peers": peers, "kmeans": job})


def horizontal(method: str) -> dict[str, Any]:
    """The fields of a job over both parties' rows of 5 columns, with a joint scale."""
    columns = sum(COLUMNS.values())
    rows = {"payco": ROWS // 2, "shop": ROWS // 2}
    return {"layout": "horizontal", "rows": rows, "features": columns, "normalise": _joint(method)}


def _joint(method: str) -> dict[str, Any]:
    return {"method": method, "aggregate": True}


def traced(config: JobConfig) -> TracedJob:
    steps, job = kmeans_steps(config), config.required_kmeans
    return trace_job(steps, statistics_method(job), policy_of(config, steps.layout, job.reveal))


def _cost(job: TracedJob, step: JobStep) -> tuple[int, int]:
    """Rounds, and bytes that payco sends to shop in all shards."""
    first = step.stages[job.shapes(step.over)[0]]
    return _rounds(first), sum(count * stage.sent[0] for count, stage in job.stage_counts(step))


def steps_table() -> str:
    jobs = [traced(example(k)) for k in CLUSTERS]
    rows = []
    for each in zip(*(job.steps for job in jobs), strict=True):
        costs = [_cost(job, step) for job, step in zip(jobs, each, strict=True)]
        rows.append([f"`{each[0].name}`", _over(each[0].over), _when(each[0]), *_by_kind(costs)])
    totals = [_iteration(job) for job in jobs]
    head = ["step", "over", "when", *(f"{what}, k = {k}" for what in ("rounds", "bytes") for k in CLUSTERS)]
    return _markdown(head, [*rows, ["an iteration, on its critical path", "", "", *_by_kind(totals)]])


def _iteration(job: TracedJob) -> tuple[int, int]:
    """Rounds on the critical path, and bytes."""
    steps = [step for step in job.steps if step.when in ("iteration", "later")]
    stages = {stage.name for step in steps for _, stage in job.stage_counts(step) if any(stage.sent)}
    return waits_of(steps, stages).total(), sum(_cost(job, step)[1] for step in steps)


def _by_kind(costs: Sequence[tuple[int, int]]) -> list[int]:
    """All rounds, then all bytes."""
    return [cost[kind] for kind in (0, 1) for cost in costs]


def _over(over: Over) -> str:
    return {Over.ROWS: "row shards", Over.COLUMNS: "column shards", Over.ONE: "one element"}[over]


def _when(step: JobStep) -> str:
    later = {"later": "each iteration but the first", "last": "after the last iteration"}
    return {"once": "once", "iteration": "each iteration", "end": "at the end", "seed": "k − 1 times", **later}[
        step.when
    ]


OTHER_JOBS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "horizontal, joint `minmax`": (horizontal("minmax"), ("extremes",)),
    "horizontal, joint `zscore`": (horizontal("zscore"), ("moments",)),
    "vertical, `products: he`": ({"products": "he"}, ("encrypt", "distance", "update", "unmask", "last-encrypt")),
    "vertical, `reveal.scores`, `outliers`": (
        {"outliers": {"fraction": 0.01}, "reveal": {"scores": PARTIES, "outliers": PARTIES}},
        ("last-assign", "last-outliers", "last-threshold", "reveal-scores"),
    ),
    "vertical, `reveal.explanations`, `contributions: all`": (
        {
            "outliers": {"fraction": 0.01},
            "reveal": {"outliers": PARTIES, "explanations": PARTIES, "contributions": "all"},
        },
        ("last-explain", "last-explain-clusters", "last-explain-centroids", "reveal-explanations", "reveal-explained"),
    ),
    "vertical, `reveal.profiles`": (
        {"reveal": {"profiles": PARTIES}},
        ("last-profile", "last-profile-hide", "reveal-profiles"),
    ),
    "vertical, `reveal.minimum_size`": (
        {"reveal": {"centroids": PARTIES, "minimum_size": 10}},
        ("last-minimum-size", "last-open-centroids", "reveal-centroids"),
    ),
    "vertical, `outliers.during_training`": (
        {"outliers": {"fraction": 0.01, "during_training": True}, "reveal": {"outliers": PARTIES}},
        ("assign", "outliers", "threshold", "weigh", "update"),
    ),
    "vertical, `init.method: k-means++`": (
        {"init": {"method": "k-means++"}},
        tuple(f"seed-{name}" for name in ("distance", "norms", "draw", "nearest", "limit", "choose", "update")),
    ),
    "vertical, `starts: 5`": (
        {"starts": 5},
        ("distance", "assign", "update", "start-norms", "start-choose", "start-take", "start-counts"),
    ),
}
"""Jobs that have other steps than the first example, and which."""


def other_steps_table() -> str:
    rows = []
    for name, (fields, wanted) in OTHER_JOBS.items():
        job = traced(example(5, **fields))
        steps = [step for step in job.steps if step.name in wanted]
        rows += [[name, f"`{step.name}`", _over(step.over), _when(step), *_cost(job, step)] for step in steps]
    return _markdown(["job, k = 5", "step", "over", "when", "rounds", "bytes"], rows)


def store_table() -> str:
    rows = []
    for k in CLUSTERS:
        needs = traced(example(k)).needs(0, 1)
        parts = [expected_corrections(party, needs).values() for party in range(len(PARTIES))]
        rows.append([k, *(sum(array.nbytes for array in arrays) for arrays in parts)])
    return _markdown(["k", "bytes to the first party", "bytes to the last party"], rows)


def step_names() -> set[str]:
    """The names of all steps that any K-means job has."""
    jobs = [example(5), *(example(5, **fields) for fields, _ in OTHER_JOBS.values())]
    return {step.name for config in jobs for step in traced(config).steps}


TABLES: dict[str, Callable[[], str]] = {
    "arithmetic on shares": primitives_table,
    "steps": steps_table,
    "other steps": other_steps_table,
    "triple store": store_table,
}


def main() -> None:
    for page in ("protocol.md", "kmeans.md"):
        file = DOCS / page
        file.write_text(with_tables(file.read_text()))


if __name__ == "__main__":
    main()
