"""The command `veilmeans status`: the progress of this party's run, from its own files. Nothing is sent."""

import json

from rich.table import Table

from veilmeans.io.storage.result_files import read_result
from veilmeans.io.storage.run_report import RunReport, bytes_sent
from veilmeans.io.storage.triple_store import TripleStore
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import StorageError


def show_status(config: JobConfig) -> Table:
    """A table of what a run needs and has made."""
    table = Table("what", "state", title=f"run {config.run!r} of {config.party}")
    prepared = len(config.storage_folder.prepared.all_encoded())
    table.add_row("data", f"prepared ({prepared} set{'s' * (prepared != 1)})" if prepared else "not prepared")
    table.add_row(f"triple store {config.required_triples.store!r}", _store_state(config))
    for what, state in _run_states(config):
        table.add_row(what, state)
    return table


def _store_state(config: JobConfig) -> str:
    try:
        store = TripleStore.open(config.store_folder)
    except StorageError:
        if config.provider == "dealer":
            return "not made: run `veilmeans offline` at every party and the dealer"
        command = config.required_kmeans.command
        return f"not made: `veilmeans {command}` makes it first, `veilmeans offline` ahead of time"
    runs, iterations = store.manifest.runs, store.manifest.iterations
    return f"{store.runs_left():,} of {runs:,} runs left, {iterations:,} iterations each"


def _run_states(config: JobConfig) -> list[tuple[str, str]]:
    folder, job = config.run_folder, config.kmeans_with_data
    peers = [peer for peer in config.parties if peer != config.party]
    agreed = all(folder.terms(peer, config.party).exists() for peer in peers)
    numbers = folder.checkpoint_numbers()
    iterations = ("iterations", f"{max(numbers)} of at most {job.max_iter} done" if numbers else "none done")
    if job.predict is not None:
        assigned = f"assigned to clusters of {job.predict.model!r}" if 1 in numbers else "not assigned yet"
        iterations = ("new rows", assigned)
    report = RunReport(folder).content
    cost = f"{report['seconds']:.1f} s, {bytes_sent(report['stages']) / 1e6:,.2f} MB sent"
    files = folder.assignments, folder.scores, folder.outliers, folder.explanations, folder.centroids
    opened = [str(file) for file in files if file.exists()]
    result = read_result(folder)
    if "inertia" in result:
        opened.append(f"inertia {json.dumps(result['inertia'])}")
    return [
        ("handshake", "agreed with all" if agreed else "not yet"),
        iterations,
        ("online cost", cost),
        ("opened here", "\n".join(opened) or "nothing"),
        ("run", "all parties have what they need" if folder.farewell.exists() else "not ended"),
    ]
