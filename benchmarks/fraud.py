"""Fraud found by outliers: Jaccard coefficients together and alone, and what the search for outliers costs.

Each data set is split between two parties by columns. For each seed, K-means with k = 5 starts from the same rows on
shares and in plaintext, together and at each party alone; the outliers are as many rows as there are frauds. Outliers
found together on shares must be those of plaintext. Data sets that are not in the folder (--data) are left out.

Costs, best of some runs: outliers at n = 10^5, d = 2, k = 5, t = 10, with them and without; five starts of the same job
at n = 10^4 and of one, with the rounds of an iteration.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow.csv
from numpy.typing import NDArray

from benchmarks.figures import Figure, parser, publish
from benchmarks.kmeans_runs import PARTIES, Measured, Shape, measure, write_configurations
from veilmeans import VeilKMeans, load_config, plan_ahead
from veilmeans.pipelines.local.demo_data import distances, farthest, features, jaccard, make_transactions
from veilmeans.schemas.arrays import Real
from veilmeans.transforms.kmeans.plaintext_kmeans import lloyd, nearest

SHARED = Path(__file__).parents[2] / "shared" / "data"
K, ITERATIONS = 5, 20
LARGE = Shape(100_000, 2, K, 10, final_assignment=True)
SMALL = replace(LARGE, rows=10_000)
STARTS = 5
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Labelled:
    """Both parties' columns of the same rows, and which rows are fraud."""

    name: str
    parts: dict[str, Real]
    fraud: Flags


def data_sets(folder: Path) -> Iterator[Labelled]:
    """The data sets that are there, and a synthetic one."""
    if (file := folder / "adbench_31_satimage-2.npz").exists():
        loaded = np.load(file)
        left, right = np.array_split(loaded["X"].astype(float), 2, axis=1)
        yield Labelled("satimage-2", {"left": left, "right": right}, loaded["y"].astype(bool))
    if (file := folder / "fate_default_credit_hetero_guest.csv.gz").exists():
        guest = pyarrow.csv.read_csv(file).sort_by("id")
        host = pyarrow.csv.read_csv(str(file).replace("guest", "host")).sort_by("id")
        fraud = guest["y"].to_numpy().astype(bool)
        yield Labelled("credit", {"guest": features(guest.drop(["y"])), "host": features(host)}, fraud)
    made = make_transactions(10_000, {"payco": 18, "shop": 24}, seed=3)
    yield Labelled("synthetic", {name: features(table) for name, table in made.tables.items()}, made.fraud)


def plaintext_outliers(rows: Real, start: list[int], iterations: int, count: int) -> Flags:
    """The rows farthest from their centroids, by Lloyd's K-means on columns scaled to [0, 1]."""
    low, high = rows.min(axis=0), rows.max(axis=0)
    scaled = (rows - low) / np.where(high > low, high - low, 1)
    centroids = lloyd(lambda: [scaled], scaled[start], iterations)[-1].centroids
    return farthest(distances(scaled, nearest(scaled, centroids), centroids), count)


def run_once(data: Labelled, seed: int) -> dict[str, float]:
    """Jaccard coefficients with the frauds by one start, and of the outliers on shares with those of plaintext."""
    count, joint = int(data.fraud.sum()), np.hstack(list(data.parts.values()))
    start = np.random.default_rng(seed).choice(len(joint), K, replace=False).tolist()
    model = VeilKMeans(K, init=start, max_iter=ITERATIONS, outliers=count, dealer=True).fit(data.parts)
    done = int(np.asarray(model.n_iter_))
    plain = plaintext_outliers(joint, start, done, count)
    alone = {name: plaintext_outliers(part, start, done, count) for name, part in data.parts.items()}
    flags = {"together on shares": model.outliers_, "together in plaintext": plain, **alone}
    found = {name: jaccard(each, data.fraud) for name, each in flags.items()}
    return {**found, "shares and plaintext": jaccard(model.outliers_, plain)}


def compare(data: Labelled, runs: int) -> list[Figure]:
    """Jaccard coefficients over some seeds: mean and deviation."""
    found = [run_once(data, seed) for seed in range(runs)]
    values = {name: [each[name] for each in found] for name in found[0]}
    figures = [
        Figure(f"{data.name}: {name}", float(np.mean(each)), f"± {np.std(each):.3f}") for name, each in values.items()
    ]
    return [*figures[:-1], Figure.at_least(figures[-1].name, figures[-1].value, "Jaccard", 0.999)]


def costs(times: int) -> list[Figure]:
    """Online seconds and megabytes that the search for 1,000 outliers adds to a run."""
    without, found = (_best(replace(LARGE, outliers=each), times) for each in (None, {"count": 1000}))
    added = 100 * (found.online - without.online) / without.online
    return [
        Figure("n = 10^5 without outliers", without.online, "s online"),
        Figure.at_most("outliers add", added, "% online", 30),
        Figure.at_most("outliers add", found.online_mb - without.online_mb, "MB", 60),
    ]


def start_costs(times: int) -> list[Figure]:
    """Online seconds and rounds of several starts in one run, by those of one."""
    one, several = (replace(SMALL, starts=each) for each in (1, STARTS))
    before, after = (_best(each, times).online for each in (one, several))
    rounds, more = (iteration_rounds(each) for each in (one, several))
    return [
        Figure("n = 10^4, one start", before, "s online"),
        Figure.at_most(f"{STARTS} starts take", after / before, "times as long", 4),
        Figure("rounds of an iteration, one start", rounds, ""),
        Figure.at_most(f"rounds that {STARTS} starts add to an iteration", more - rounds, "", 0),
    ]


def _best(shape: Shape, times: int) -> Measured:
    """The fastest of some runs."""
    return min((measure(shape) for _ in range(times)), key=lambda each: each.online)


def iteration_rounds(shape: Shape) -> int:
    """The rounds of an iteration that wait for each other, as planned; `plan_vs_run` compares them with runs."""
    with tempfile.TemporaryDirectory(prefix="veilmeans-bench-") as folder:
        write_configurations(Path(folder), shape)
        return plan_ahead(load_config(Path(folder) / PARTIES[0] / "config.yaml")).iteration.waits


def main() -> None:
    """Measure and publish."""
    arguments = parser(__doc__)
    arguments.add_argument("--runs", type=int, default=10, help="seeds for each data set")
    arguments.add_argument("--data", type=Path, default=SHARED, help="folder with the shared data sets")
    arguments.add_argument("--cost-runs", type=int, default=3, help="runs of which the fastest counts")
    given = arguments.parse_args()
    figures = [figure for data in data_sets(given.data) for figure in compare(data, given.runs)] if given.runs else []
    measured = [*costs(given.cost_runs), *start_costs(given.cost_runs)] if given.cost_runs else []
    publish([*figures, *measured], given.json)


if __name__ == "__main__":
    main()
