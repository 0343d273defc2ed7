"""Runs with all parties on this machine, from their data in memory: what each of them would have written itself."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from veilmeans.io.storage.result_files import free_name
from veilmeans.pipelines.configure.config_template import Example, write_trial
from veilmeans.pipelines.local.party_frames import PartyFrames
from veilmeans.pipelines.local.party_processes import CONFIG, change_config, fresh_ports, new_folder

RUN = "fit"
_PATIENCE = 600
"""Seconds that a party waits for another: when one fails, all are ended anyway."""


def write_training(folder: Path, parts: PartyFrames, job: Mapping[str, Any]) -> tuple[str, ...]:
    """Everyone's keys and configuration, and the parties' data; the names of all, the dealer's last.

    `job`: fields of `kmeans` that are alike at everyone and that the data do not tell.
    """
    members = (*parts.names, free_name("dealer", parts.names))
    write_trial(folder, Example(parts.names, members[-1], RUN, rows=parts.total_rows, clusters=1, timeout=_PATIENCE))
    sparse = {name: {"nonzeros": each.nonzeros} for name, each in parts.held.items() if each.sparse}
    shapes = {"rows": parts.rows, "features": parts.features, "sparse": sparse, "id": None}
    ports = fresh_ports(members)
    for name in members:
        own: dict[str, Any] = {}
        if name in parts.held:
            own = {"data": parts.held[name].write(folder / name), **parts.encoding(name)}
        change_config(folder / name / CONFIG, {**ports[name], "kmeans": {**shapes, **job, **own}})
    return members


def write_prediction(folder: Path, members: tuple[str, ...], parts: PartyFrames, margin: float) -> str:
    """Everyone's configuration of a prediction with the trained model, and the parties' new data; the run's name."""
    run = new_folder(folder / members[0], "predict").name
    reveal: dict[str, Any] = {"centroids": [], "inertia": []}
    job = {"rows": parts.rows, "predict": {"model": RUN, "margin": margin}, "reveal": reveal}
    ports = fresh_ports(members)
    for name in members:
        place = folder / name
        own = {"data": f"{run}/{parts.held[name].write(place / run)}"} if name in parts.held else {}
        fields = {"run": run, "triples": {"store": run}, **ports[name], "kmeans": {**job, **own}}
        change_config(place / CONFIG, fields, place / f"{run}.yaml")
    return run
