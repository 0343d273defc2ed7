"""The demo: a payment company and a merchant find fraud in joint clusters, as separate processes on this machine.

It writes the files of real parties (keys, configurations, synthetic data), each party's in its own folder, then starts
`veilmeans train` for both: they make their correlated randomness, then find clusters. At the end it compares the result
with plaintext Lloyd on both companies' data, which only a demo can do.
"""

import shutil
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray
from rich.table import Table

from veilmeans.io.files.atomic_files import check_writable
from veilmeans.io.storage.run_report import RunReport, bytes_sent
from veilmeans.pipelines.configure.config_template import TemplateValues, write_trial
from veilmeans.pipelines.configure.edit_config import set_fields
from veilmeans.pipelines.local import demo_data
from veilmeans.pipelines.local.demo_data import KINDS, Transactions, scaled
from veilmeans.pipelines.local.party_processes import CONFIG, free_ports, run_parties
from veilmeans.pipelines.reporting.terminal import Terminal
from veilmeans.pipelines.session.kmeans_from_config import layout_of
from veilmeans.schemas.arrays import Real
from veilmeans.schemas.config import load_config
from veilmeans.schemas.errors import ConfigError, VeilmeansError
from veilmeans.schemas.run_folder import RunFolder, StorageFolder
from veilmeans.transforms.kmeans.initial_centroids import initial_rows
from veilmeans.transforms.kmeans.plaintext_kmeans import lloyd, nearest

FEATURES = {"payco": 18, "shop": 24}
RUN = "demo"
SEED = 3


def run_demo(folder: Path, rows: int, exchange: str) -> None:
    """Write the parties' files, run their commands, compare the result with plaintext, and print it."""
    console = Terminal()
    transactions = write_demo(folder, rows, exchange)
    columns = ", ".join(f"{name} {width}" for name, width in FEATURES.items())
    console.print(f"{rows:,} transactions × {sum(FEATURES.values())} features ({columns}); exchange by {exchange}")
    with console.status("the companies make the triple store, then find clusters in their joint data"):
        seconds = run_parties(folder, "train", tuple(FEATURES))
    console.print(_comparison(folder, transactions))
    console.print(_costs(folder, seconds))
    for name in FEATURES:
        console.print(f"{name}: {_run_folder(folder, name)}", soft_wrap=True)
        console.print(f"{name}'s report: {_run_folder(folder, name).html_report}", soft_wrap=True)


def write_demo(folder: Path, rows: int, exchange: str) -> Transactions:
    """Write data, keys and configuration of each member into its own folder."""
    check_demo(folder, exchange)
    if folder.exists():
        shutil.rmtree(folder)
    values = TemplateValues(
        parties=tuple(FEATURES),
        run=RUN,
        rows=rows,
        features=FEATURES,
        clusters=KINDS,
        seed=SEED,
        exchange=exchange,
        timeout=60,
        ports=dict(zip(FEATURES, free_ports(len(FEATURES)), strict=True)),
        id="transaction",
    )
    transactions = demo_data.make_transactions(rows, FEATURES, SEED)
    write_trial(folder, values)
    found = {"kmeans.outliers": {"fraction": demo_data.FRAUD_RATE}, "kmeans.reveal.outliers": list(FEATURES)}
    set_fields({folder / name / CONFIG: found for name in FEATURES})
    for name, table in transactions.tables.items():
        pyarrow.csv.write_csv(table, folder / name / "data.csv")
    return transactions


def check_demo(folder: Path, exchange: str) -> None:
    """Refuse a folder with files that no earlier demo wrote, because an earlier demo is removed."""
    if exchange not in ("gateway", "files"):
        raise ConfigError(f"--exchange is {exchange!r}: it must be gateway or files")
    others = [p.name for p in folder.iterdir() if p.name not in FEATURES] if folder.exists() else []
    if others:
        raise ConfigError(f"{folder} holds {others[0]!r}, which no demo wrote: choose another --folder")


def _comparison(folder: Path, transactions: Transactions) -> Table:
    """Compare the result with plaintext Lloyd on both companies' data, from the same first centroids."""
    labels, outliers = _labels(folder), _outliers(folder, transactions)
    rows = np.hstack([scaled(table) for table in transactions.tables.values()])
    iterations = RunReport(_run_folder(folder, "payco")).content["iterations"][-1]["done"]
    centroids = _plain_centroids(folder, rows, iterations)
    plain = nearest(rows, centroids)
    equal, count = float(np.mean(labels == plain)), int(outliers.sum())
    farthest = demo_data.farthest(demo_data.distances(rows, plain, centroids), count)
    table = Table("what", "result", title="fraud that neither company sees alone")
    table.add_row("clusters equal to plaintext Lloyd", f"{'yes' if equal == 1 else 'NO'}, {equal:.2%} of the rows")
    table.add_row("iterations", f"{iterations}")
    for name, each in transactions.tables.items():
        alone = demo_data.outliers_alone(each, count, KINDS, SEED)
        table.add_row(f"outliers that {name} finds alone, and fraud", _overlap(alone, transactions.fraud))
    table.add_row("outliers found together, and fraud", _overlap(outliers, transactions.fraud))
    same = "yes" if np.array_equal(outliers, farthest) else "NO"
    table.add_row("outliers equal to plaintext", f"{same}, {count:,} rows")
    if equal < 0.999 or demo_data.jaccard(outliers, farthest) < 0.9:
        raise VeilmeansError("clusters or outliers differ from plaintext Lloyd: please report it")
    return table


def _overlap(found: NDArray[np.bool_], fraud: NDArray[np.bool_]) -> str:
    return (
        f"Jaccard {demo_data.jaccard(found, fraud):.2f}: {int((found & fraud).sum()):,} of {int(fraud.sum()):,} frauds"
    )


def _plain_centroids(folder: Path, rows: Real, iterations: int) -> Real:
    """Run plaintext Lloyd for as many iterations, and return its last centroids."""
    config = load_config(folder / "payco" / "config.yaml")
    job = config.kmeans_with_data
    start = rows[list(initial_rows(job, layout_of(config, job)))]
    return lloyd(lambda: [rows], start, iterations)[-1].centroids


def _labels(folder: Path) -> NDArray[np.int32]:
    opened = [pyarrow.parquet.read_table(_run_folder(folder, name).assignments) for name in FEATURES]
    if any(not each.equals(opened[0]) for each in opened):
        raise VeilmeansError("the companies have different assignments: please report it")
    labels: NDArray[np.int32] = opened[0].column("cluster").to_numpy()
    return labels


def _outliers(folder: Path, transactions: Transactions) -> NDArray[np.bool_]:
    """Mark the transactions that were opened to payco as outliers."""
    opened = pyarrow.parquet.read_table(_run_folder(folder, "payco").outliers)["transaction"]
    return np.isin(transactions.tables["payco"]["transaction"].to_numpy(), np.array(opened.to_pylist(), int))


def _costs(folder: Path, seconds: float) -> Table:
    table = Table("party", "offline s", "MB sent", "online s", "MB sent", title=f"both commands: {seconds:.1f} s")
    for name in FEATURES:
        reports = [RunReport(_run_folder(folder, name, run)).content for run in (f"store-{RUN}", RUN)]
        costs = [(f"{each['seconds']:.1f}", f"{bytes_sent(each['stages']) / 1e6:.1f}") for each in reports]
        table.add_row(name, *chain.from_iterable(costs))
    return table


def _run_folder(folder: Path, name: str, run: str = RUN) -> RunFolder:
    return StorageFolder(folder / name / "storage").run(run)


def dry_demo(folder: Path, rows: int, exchange: str) -> str:
    """Check the folder, and return what would be done."""
    check_demo(folder, exchange)
    check_writable(folder)
    removed = f"would remove the earlier demo in {folder}\n" if folder.exists() else ""
    return (
        f"{removed}would write configuration, keys and data of {', '.join(FEATURES)} below {folder}: {rows:,} "
        f"synthetic transactions × {sum(FEATURES.values())} features\n"
        f"would start {len(FEATURES)} × `veilmeans train`, on this machine only (127.0.0.1, {len(FEATURES)} free "
        f"ports); exchange by {exchange}"
    )
