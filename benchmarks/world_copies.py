"""Copies of both parties' folders: the same keys, seeds, data and triples, on ports of their own, for one run each."""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.kmeans_runs import PARTIES, changed_yaml
from veilmeans.pipelines.local.party_processes import free_addresses
from veilmeans.schemas.run_folder import StorageFolder

Results = dict[str, list[bytes]]
"""Each party's opened results, as they are on disk."""


def copy_world(before: Path, to: Path, names: Sequence[str] = ("config",)) -> Path:
    """Copy both parties' folders; `names`: of their configurations."""
    shutil.copytree(before, to)
    addresses = free_addresses(PARTIES)
    for party in PARTIES:
        for name in names:
            with changed_yaml(to / party / f"{name}.yaml") as config:
                config["listen"] = addresses[party]["listen"]
                for peer in set(config["peers"]) & set(PARTIES):
                    config["peers"][peer]["address"] = addresses[party][f"peers.{peer}.address"]
    return to


def train_both(folder: Path, launchers: Mapping[str, Sequence[str]]) -> tuple[float, Results]:
    """Train; return the seconds of the slower party's report, and the results.

    `launchers`: for a party that does not run `veilmeans train --config`, the arguments of Python before the file.
    """
    usual = ("-m", "veilmeans", "train", "--config")
    with (folder / "train.log").open("w") as log:
        lines = [[*launchers.get(party, usual), str(folder / party / "config.yaml")] for party in PARTIES]
        processes = [subprocess.Popen([sys.executable, *line], stdout=log, stderr=log) for line in lines]
        codes = [process.wait() for process in processes]
    if any(codes):
        raise SystemExit(f"the run ended with {codes}: {(folder / 'train.log').read_text()[-2000:]}")
    folders = {party: StorageFolder(folder / party / "storage").run("first") for party in PARTIES}
    seconds = max(json.loads(each.report.read_text())["seconds"] for each in folders.values())
    files = {party: (each.assignments, each.centroids) for party, each in folders.items()}
    return seconds, {party: [file.read_bytes() for file in each] for party, each in files.items()}
