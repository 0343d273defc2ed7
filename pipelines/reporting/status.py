"""The command `veilmeans status`: the progress of this party's run, from its own files. Nothing is sent."""

from dataclasses import dataclass

from rich.table import Table

from veilmeans.io.exchange.connections import attach_shared
from veilmeans.io.storage.checkpoints import checkpoint_numbers
from veilmeans.io.storage.encoded_shards import complete_folders
from veilmeans.io.storage.result_files import read_result
from veilmeans.io.storage.run_report import RunReport, bytes_sent
from veilmeans.io.storage.triple_store import TripleStore
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import StorageError


@dataclass(frozen=True)
class StoreStatus:
    """The rest of a triple store."""

    runs_left: int
    runs: int
    iterations: int


@dataclass(frozen=True)
class RunStatus:
    """The progress of a run at this party: the things that it needs and has made."""

    prepared: int
    """sets of encoded data"""
    store: StoreStatus | None
    """none: it is not made"""
    agreed: bool
    """the handshake with all peers is done"""
    iterations: int
    seconds: float
    bytes_sent: int
    files: tuple[str, ...]
    """what was opened to this party"""
    inertia: object
    """none: it was not opened"""
    ended: bool
    """all parties have what they need"""


def read_status(config: JobConfig) -> RunStatus:
    """Read how far the run has come."""
    attach_shared(config)
    folder = config.run_folder
    report, result = RunReport(folder).content, read_result(folder)
    opened = (
        folder.assignments,
        folder.scores,
        folder.outliers,
        folder.explanations,
        folder.profiles,
        folder.centroids,
    )
    peers = [peer for peer in config.parties if peer != config.party]
    return RunStatus(
        prepared=len(complete_folders(config.storage_folder.prepared)),
        store=_store_status(config),
        agreed=all(folder.terms(peer, config.party).exists() for peer in peers),
        iterations=max([0, *checkpoint_numbers(folder)]),
        seconds=report["seconds"],
        bytes_sent=bytes_sent(report["stages"]),
        files=tuple(str(file) for file in opened if file.exists()),
        inertia=result.get("inertia"),
        ended=folder.farewell.exists(),
    )


def _store_status(config: JobConfig) -> StoreStatus | None:
    try:
        store = TripleStore.open(config.store_folder)
    except StorageError:
        return None
    return StoreStatus(store.runs_left(), store.manifest.runs, store.manifest.iterations)


def show_status(config: JobConfig, status: RunStatus) -> Table:
    """A table of what a run needs and has made."""
    table = Table("what", "state", title=f"run {config.run!r} of {config.party}")
    sets = f"prepared ({status.prepared} set{'s' * (status.prepared != 1)})"
    table.add_row("data", sets if status.prepared else "not prepared")
    table.add_row(f"triple store {config.required_triples.store!r}", _store_state(config, status.store))
    for what, state in _run_states(config, status):
        table.add_row(what, state)
    return table


def _store_state(config: JobConfig, store: StoreStatus | None) -> str:
    if store is not None:
        return f"{store.runs_left:,} of {store.runs:,} runs left, {store.iterations:,} iterations each"
    if config.provider == "dealer":
        return "not made: run `veilmeans offline` at every party and the dealer"
    command = config.required_kmeans.command
    return f"not made: `veilmeans {command}` makes it first, `veilmeans offline` ahead of time"


def _run_states(config: JobConfig, status: RunStatus) -> list[tuple[str, str]]:
    job, done = config.kmeans_with_data, status.iterations
    begun = bool(checkpoint_numbers(config.run_folder))
    iterations = ("iterations", f"{done} of at most {job.max_iter} done" if begun else "none done")
    if job.predict is not None:
        iterations = ("new rows", f"assigned to clusters of {job.predict.model!r}" if done else "not assigned yet")
    opened = [*status.files, *([] if status.inertia is None else [f"inertia {status.inertia!r}"])]
    return [
        ("handshake", "agreed with all" if status.agreed else "not yet"),
        iterations,
        ("online cost", f"{status.seconds:.1f} s, {status.bytes_sent / 1e6:,.2f} MB sent"),
        ("opened here", "\n".join(opened) or "nothing"),
        ("run", "all parties have what they need" if status.ended else "not ended"),
    ]
