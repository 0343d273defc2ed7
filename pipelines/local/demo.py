"""`veilmeans demo`: a payment company and a merchant find fraud together, as processes of their own on this machine.

It writes what real parties would have (keys, configurations, data), each in a folder of its own, then starts the
commands that they would: `veilmeans offline` with the dealer, then two `veilmeans train`. At the end it compares the
result with plaintext Lloyd on both companies' data, which only a demo can do.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pyarrow.parquet
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from veilmeans.io.storage.atomic_files import check_writable
from veilmeans.io.storage.result_files import ASSIGNMENTS, CENTROIDS
from veilmeans.io.storage.run_report import bytes_sent
from veilmeans.pipelines.configure.config_template import Example, write_trial
from veilmeans.pipelines.local.demo_data import (
    KINDS,
    Transactions,
    distances,
    features,
    frauds_found,
    frauds_found_alone,
    make_transactions,
    scaled,
)
from veilmeans.pipelines.local.party_processes import free_ports, run_parties
from veilmeans.pipelines.reporting.html_report import REPORT
from veilmeans.pipelines.session.kmeans_from_config import layout_of
from veilmeans.schemas.arrays import Real
from veilmeans.schemas.config import kmeans_with_data, load_config
from veilmeans.schemas.errors import ConfigError, VeilmeansError
from veilmeans.transforms.kmeans.initial_centroids import first_rows
from veilmeans.transforms.kmeans.plaintext_kmeans import lloyd, nearest

FEATURES = {"payco": 18, "shop": 24}
DEALER = "dealer"
SEED = 3


def run_demo(folder: Path, rows: int, exchange: str) -> None:
    """Set up, run, compare, print."""
    console = Console()
    transactions = write_demo(folder, rows, exchange)
    columns = ", ".join(f"{name} {width}" for name, width in FEATURES.items())
    console.print(f"{rows:,} transactions × {sum(FEATURES.values())} features ({columns}); exchange by {exchange}")
    with console.status("offline: the dealer and the companies make masks; no data are read"):
        offline = run_parties(folder, "offline", (*FEATURES, DEALER))
    with console.status("online: the companies cluster their transactions together"):
        online = run_parties(folder, "train", tuple(FEATURES))
    console.print(_outcome(folder, transactions))
    console.print(_costs(folder, offline, online))
    for name in FEATURES:
        console.print(f"{name}: {_run_folder(folder, name)}", soft_wrap=True)
    for name in FEATURES:
        console.print(f"{name}'s report: {_run_folder(folder, name) / REPORT}", soft_wrap=True)


def write_demo(folder: Path, rows: int, exchange: str) -> Transactions:
    """Data, keys and configurations of everyone, each in a folder of its own."""
    check_demo(folder, exchange)
    if folder.exists():
        shutil.rmtree(folder)
    members = (*FEATURES, DEALER)
    example = Example(
        parties=tuple(FEATURES),
        dealer=DEALER,
        run="demo",
        rows=rows,
        features=FEATURES,
        clusters=KINDS,
        seed=SEED,
        exchange=exchange,
        timeout=60,
        ports=dict(zip(members, free_ports(len(members)), strict=True)),
        id="transaction",
    )
    transactions = make_transactions(rows, FEATURES, SEED)
    write_trial(folder, example)
    for name, table in transactions.tables.items():
        pyarrow.csv.write_csv(table, folder / name / "data.csv")
    return transactions


def check_demo(folder: Path, exchange: str) -> None:
    """Only what an earlier demo wrote may be removed."""
    if exchange not in ("gateway", "files"):
        raise ConfigError(f"--exchange is {exchange!r}: it must be gateway or files")
    strangers = [p.name for p in folder.iterdir() if p.name not in (*FEATURES, DEALER)] if folder.exists() else []
    if strangers:
        raise ConfigError(f"{folder} holds {strangers[0]!r}, which no demo wrote: choose another --folder")


def _outcome(folder: Path, transactions: Transactions) -> Table:
    """What was found, beside plaintext Lloyd from the same start on both companies' data."""
    labels, centres = _labels(folder), _centres(folder, transactions)
    rows = {name: scaled(table) for name, table in transactions.tables.items()}
    joint = np.hstack(list(rows.values()))
    plain = _plain_labels(folder, joint, _report(folder, "payco"))
    equal = float(np.mean(labels == plain))
    scores = sum(distances(rows[name], labels, centres[name]) for name in FEATURES)
    table = Table("what", "result", title="fraud that neither company sees alone")
    table.add_row("clusters equal to plaintext Lloyd", f"{'yes' if equal == 1 else 'NO'}, {equal:.2%} of the rows")
    table.add_row("iterations", f"{_report(folder, 'payco')['iterations'][-1]['done']}")
    for name, each in transactions.tables.items():
        table.add_row(
            f"frauds that {name} finds alone", f"{frauds_found_alone(each, transactions.fraud, KINDS, SEED):.0%}"
        )
    table.add_row("frauds found together", f"{frauds_found(np.asarray(scores), transactions.fraud):.0%}")
    if equal < 0.999:
        raise VeilmeansError("the clusters differ from plaintext Lloyd: please report it")
    return table


def _plain_labels(folder: Path, rows: Real, report: dict[str, Any]) -> NDArray[np.intp]:
    """The last assignment of plaintext Lloyd, after as many iterations."""
    config = load_config(folder / "payco" / "config.yaml")
    job = kmeans_with_data(config)
    start = rows[list(first_rows(job, layout_of(config, job)))]
    steps = lloyd(lambda: [rows], start, report["iterations"][-1]["done"])
    before = steps[-2].centres if len(steps) > 1 else start
    return nearest(rows, before)


def _labels(folder: Path) -> NDArray[np.int32]:
    opened = [pyarrow.parquet.read_table(_run_folder(folder, name) / ASSIGNMENTS) for name in FEATURES]
    if any(not each.equals(opened[0]) for each in opened):
        raise VeilmeansError("the companies have got different assignments: please report it")
    labels: NDArray[np.int32] = opened[0].column("cluster").to_numpy()
    return labels


def _centres(folder: Path, transactions: Transactions) -> dict[str, Real]:
    """Each company's centroids of its own features, on the scale of `scaled`."""
    opened = {name: pyarrow.parquet.read_table(_run_folder(folder, name) / CENTROIDS) for name in FEATURES}
    return {name: scaled(transactions.tables[name], features(table)) for name, table in opened.items()}


def _costs(folder: Path, offline: float, online: float) -> Table:
    title = f"offline {offline:.1f} s, online {online:.1f} s"
    table = Table("party", "offline MB received", "online MB sent", "online seconds", title=title)
    for name in FEATURES:
        report = _report(folder, name)
        store = folder / name / "storage" / "triples"
        size = sum(file.stat().st_size for file in store.rglob("*") if file.is_file())
        table.add_row(
            name, f"{size / 1e6:.1f}", f"{bytes_sent(report['stages']) / 1e6:.1f}", f"{report['seconds']:.1f}"
        )
    return table


def _report(folder: Path, name: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((_run_folder(folder, name) / "report.json").read_text())
    return report


def _run_folder(folder: Path, name: str) -> Path:
    return folder / name / "storage" / "runs" / "demo"


def dry_demo(folder: Path, rows: int, exchange: str) -> str:
    check_demo(folder, exchange)
    check_writable(folder)
    members = (*FEATURES, DEALER)
    removed = [f"would remove the earlier demo in {folder}"] if folder.exists() else []
    return "\n".join(
        [
            *removed,
            f"would write configuration, keys and data of {', '.join(members)} below {folder}: {rows:,} made-up "
            f"transactions × {sum(FEATURES.values())} features",
            f"would start {len(members)} × `veilmeans offline`, then {len(FEATURES)} × `veilmeans train`, on this "
            f"machine only (127.0.0.1, {len(members)} free ports); exchange by {exchange}",
        ]
    )
