"""`veilmeans demo`: a payment company, a merchant and a dealer as three processes, each with its own folder.

It writes what a real party would (keys, configuration, data), then starts the commands that a real party would. At the
end it compares the result with plain arithmetic on the made-up data, which only a demo can do.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import yaml
from rich.console import Console
from rich.table import Table

from veilmeans.pipelines.keys import make_keys
from veilmeans.schemas.errors import ConfigError, VeilmeansError

PARTIES = {"payco": ("amount_cents", "chargebacks"), "shop": ("visits", "items")}
DEALER = "dealer"
PRODUCT = ("payco.amount_cents", "shop.items")
BOUND = 1_000_000


def run_demo(folder: Path, rows: int, exchange: str) -> None:
    """Set up, run, compare, print."""
    if exchange not in ("gateway", "files"):
        raise ConfigError(f"--exchange is {exchange!r}: it must be gateway or files")
    console = Console()
    write_demo(folder, rows, exchange)
    console.print(f"{len(PARTIES)} companies and a dealer, {rows:,} rows, separate processes, exchange by {exchange}")
    with console.status("offline: the dealer and the companies make a store of triples; no data are read"):
        offline = _run_processes(folder, dict.fromkeys((*PARTIES, DEALER), "offline"))
    with console.status("online: the companies compute"):
        online = _run_processes(folder, dict.fromkeys(PARTIES, "sums"))
    console.print(_outcome(folder))
    console.print(_costs(folder))
    console.print(f"offline {offline:.1f} s, online {online:.1f} s, start-up of each Python process included")
    console.print(f"results: {', '.join(str(_result(folder, name)) for name in PARTIES)}")


def write_demo(folder: Path, rows: int, exchange: str) -> None:
    """Data, keys and configurations of everyone, each in a folder of its own."""
    if folder.exists():
        _remove_old(folder)
    for name in (*PARTIES, DEALER):
        make_keys(name, folder / name, days=7)
    for number, (name, columns) in enumerate(PARTIES.items()):
        pa.csv.write_csv(_made_up(number, columns, rows), folder / name / "data.csv")
    ports = dict(zip((*PARTIES, DEALER), free_ports(len(PARTIES) + 1), strict=True))
    for name in ports:
        for peer in ports:
            if peer != name:
                shutil.copy(folder / peer / f"{peer}.crt", folder / name / f"peer-{peer}.crt")
        text = yaml.safe_dump(_config(name, ports, exchange, rows), sort_keys=False)
        (folder / name / "config.yaml").write_text(text)


def _remove_old(folder: Path) -> None:
    """Only what an earlier demo wrote is removed."""
    strangers = [p.name for p in folder.iterdir() if p.name not in (*PARTIES, DEALER)]
    if strangers:
        raise ConfigError(f"{folder} holds {strangers[0]!r}, which no demo wrote: choose another --folder")
    shutil.rmtree(folder)


def _config(name: str, ports: dict[str, int], exchange: str, rows: int) -> dict[str, Any]:
    job: dict[str, Any] = {"product": list(PRODUCT), "bound": BOUND}
    if name in PARTIES:
        job = {"data": "data.csv", "columns": list(PARTIES[name]), **job}
    peers = {
        peer: {"certificate": f"peer-{peer}.crt", "address": f"127.0.0.1:{port}", "outbox": f"../{peer}/outbox"}
        for peer, port in ports.items()
        if peer != name
    }
    return {
        "party": name,
        "run": "demo",
        "parties": list(PARTIES),
        "dealer": DEALER,
        "certificate": f"{name}.crt",
        "key": f"{name}.key",
        "seed": f"{name}.seed",
        "storage": "storage",
        "listen": f"127.0.0.1:{ports[name]}",
        "peers": peers,
        "exchange": {"kind": exchange, "outbox": "outbox", "timeout_s": 60},
        "engine": {"runner": "DirectRunner", "workers": 1},
        "triples": {"store": "demo", "rows": rows},
        "sums": job,
    }


def _made_up(number: int, columns: tuple[str, ...], rows: int) -> pa.Table:
    """Whole numbers between 0 and 9,999 that differ by company and column; made up, so hashing is random enough."""
    index = pa.array(range(rows), pa.int64())
    spread = [pc.bit_wise_and(pc.multiply(index, 7919 + 104_729 * (2 * number + i)), 8191) for i in range(len(columns))]
    return pa.table(dict(zip(columns, spread, strict=True)))


def _run_processes(folder: Path, commands: Mapping[str, str]) -> float:
    """Start everyone as a real party would; if one fails, its own sentence is the demo's. Seconds until all ended."""
    start = time.perf_counter()
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    with ExitStack() as stack:
        running = {}
        for name, command in commands.items():
            log = stack.enter_context((folder / name / "log.txt").open("a"))
            line = [sys.executable, "-m", "veilmeans.pipelines.cli", command, "--config"]
            process = subprocess.Popen(
                [*line, str(folder / name / "config.yaml")], stdout=log, stderr=log, env=environment
            )
            stack.callback(_end, process)
            running[name] = process
        while running:
            time.sleep(0.05)
            for name in [name for name, process in running.items() if process.poll() is not None]:
                code = running.pop(name).returncode
                if code:
                    last = (folder / name / "log.txt").read_text().strip().splitlines()[-1:]
                    raise VeilmeansError(f"{name} ended with {' '.join(last) or f'exit code {code}'}")
    return time.perf_counter() - start


def _end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.terminate()
        process.wait()


def _outcome(folder: Path) -> Table:
    """What each company learned, beside plain arithmetic on both companies' data."""
    results = {name: json.loads(_result(folder, name).read_text()) for name in PARTIES}
    plain = _plain(folder)
    table = Table("opened value", *(f"as {name} sees it" for name in PARTIES), "equal to plain arithmetic")
    for column, expected in plain.items():
        seen = [results[name][column] for name in PARTIES]
        table.add_row(column, *(f"{value:,}" for value in seen), "yes" if set(seen) == {expected} else "NO")
    if any(results[name] != plain for name in PARTIES):
        raise VeilmeansError("the sums differ from plain arithmetic: please report it")
    return table


def _plain(folder: Path) -> dict[str, int]:
    data = {name: pa.csv.read_csv(folder / name / "data.csv") for name in PARTIES}
    columns = {f"{name}.{column}": data[name][column] for name in PARTIES for column in PARTIES[name]}
    sums = {name: pc.sum(column).as_py() for name, column in columns.items()}
    left, right = (columns[name] for name in PRODUCT)
    return sums | {" · ".join(PRODUCT): pc.sum(pc.multiply(left, right)).as_py()}


def _costs(folder: Path) -> Table:
    table = Table("party", "stage", "messages sent", "MB sent", "seconds waited", title="what left each party (masked)")
    for name in PARTIES:
        report = json.loads((_result(folder, name).parent / "report.json").read_text())
        for stage, counts in report["stages"].items():
            sent, waited = counts.get("bytes_sent", 0) / 1e6, counts.get("waited_us", 0) / 1e6
            table.add_row(name, stage, f"{counts.get('messages', 0)}", f"{sent:.2f}", f"{waited:.2f}")
    return table


def _result(folder: Path, name: str) -> Path:
    return folder / name / "storage" / "runs" / "demo" / "sums.json"


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listens on."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
