"""`veilmeans status`: how far this party's run has come, from its own files. Nothing is sent."""

import json

from rich.table import Table

from veilmeans.io.storage.result_files import ASSIGNMENTS, CENTROIDS, read_result
from veilmeans.io.storage.run_report import RunReport, bytes_sent
from veilmeans.io.storage.triple_store import TripleStore
from veilmeans.schemas.config import JobConfig, kmeans_with_data
from veilmeans.schemas.errors import StorageError


def show_status(config: JobConfig) -> Table:
    """One line for each thing a run needs or makes."""
    table = Table("what", "state", title=f"run {config.run!r} of {config.party}")
    for what, state in (*_before(config), *_during(config), *_after(config)):
        table.add_row(what, state)
    return table


def _before(config: JobConfig) -> list[tuple[str, str]]:
    prepared = len(list((config.storage / "prepared").glob("*/manifest.json")))
    return [
        ("data", f"prepared ({prepared} set{'s' * (prepared != 1)})" if prepared else "not prepared"),
        _store(config),
    ]


def _store(config: JobConfig) -> tuple[str, str]:
    name = f"triple store {config.required_triples.store!r}"
    try:
        store = TripleStore.open(config.store_folder)
    except StorageError:
        return name, "not made: run `veilmeans offline` at every party and the dealer"
    return (
        name,
        f"{store.runs_left():,} of {store.manifest.runs:,} runs left, {store.manifest.iterations:,} iterations each",
    )


def _during(config: JobConfig) -> list[tuple[str, str]]:
    folder, job = config.run_folder, kmeans_with_data(config)
    peers = [peer for peer in config.parties if peer != config.party]
    agreed = all((folder / f"bound.{peer}-to-{config.party}.json").exists() for peer in peers)
    numbers = [int(file.stem) for file in (folder / "checkpoints").glob("*.arrow")]
    iterations = ("iterations", f"{max(numbers)} of at most {job.max_iter} done" if numbers else "none done")
    if job.predict is not None:
        assigned = f"assigned to clusters of {job.predict.model!r}" if 1 in numbers else "not assigned yet"
        iterations = ("new rows", assigned)
    report = RunReport(folder).content
    cost = f"{report['seconds']:.1f} s, {bytes_sent(report['stages']) / 1e6:,.2f} MB sent"
    return [
        ("handshake", "agreed with all" if agreed else "not yet"),
        iterations,
        ("online cost", cost),
    ]


def _after(config: JobConfig) -> list[tuple[str, str]]:
    folder = config.run_folder
    opened = [str(folder / name) for name in (ASSIGNMENTS, CENTROIDS) if (folder / name).exists()]
    result = read_result(folder)
    if "inertia" in result:
        opened.append(f"inertia {json.dumps(result['inertia'])}")
    ended = "all parties have what they need" if (folder / "farewell").exists() else "not ended"
    return [("opened to us", "\n".join(opened) or "nothing"), ("run", ended)]
