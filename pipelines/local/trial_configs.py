"""Write the folders of all parties of a trial from data in memory: configurations, keys and data files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from veilmeans.io.storage.result_files import unused_name
from veilmeans.pipelines.configure.config_template import TemplateValues, write_trial
from veilmeans.pipelines.configure.edit_config import copy_config, set_fields
from veilmeans.pipelines.local.party_frames import PartyFrames
from veilmeans.pipelines.local.party_processes import CONFIG, free_addresses, new_folder

RUN = "fit"
_TIMEOUT_S = 600  # seconds that a party waits for another: when one fails, all are ended anyway


def write_trial_training(
    folder: Path, frames: PartyFrames, job: Mapping[str, Any], dealer: bool = False
) -> tuple[str, ...]:
    """Write everyone's keys, configuration and data, and return the members' names, a dealer's last.

    `job`: fields of `kmeans` that all parties agree on and that do not follow from the data. `dealer`: there is one.
    """
    name = unused_name("dealer", frames.names) if dealer else None
    values = TemplateValues(frames.names, name, RUN, rows=frames.total_rows, clusters=1, timeout=_TIMEOUT_S)
    members = values.members
    write_trial(folder, values)
    sparse = {name: {"nonzeros": frame.nonzeros} for name, frame in frames.by_party.items() if frame.sparse}
    shapes = {"rows": frames.rows, "features": frames.features, "sparse": sparse, "id": None}
    addresses = free_addresses(members)
    for name in members:
        own: dict[str, Any] = {}
        if name in frames.by_party:
            own = {"data": frames.by_party[name].write(folder / name), **frames.encoding(name)}
        set_fields({folder / name / CONFIG: {**addresses[name], **_of_kmeans({**shapes, **job, **own})}})
    return members


def write_trial_prediction(folder: Path, members: tuple[str, ...], frames: PartyFrames, margin: float) -> str:
    """Write everyone's configuration and new data for a prediction with the trained model, and return its name."""
    run = new_folder(folder / members[0], "predict").name
    job = {"rows": frames.rows, "predict": {"model": RUN, "margin": margin}}
    addresses = free_addresses(members)
    for name in members:
        place = folder / name
        own = {"data": f"{run}/{frames.by_party[name].write(place / run)}"} if name in frames.by_party else {}
        fields: dict[str, Any] = {**job, **own, "outliers": None}
        fields |= {
            f"reveal.{result}": [] for result in ("centroids", "inertia", "outliers", "explanations", "profiles")
        }
        changes = {"run": run, "triples.store": run, **addresses[name], **_of_kmeans(fields)}
        copy_config(place / CONFIG, place / f"{run}.yaml", changes)
    return run


def _of_kmeans(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {f"kmeans.{field}": value for field, value in fields.items()}
