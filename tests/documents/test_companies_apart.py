"""Companies apart: empty folders, `veilmeans invite`, then what is printed, and files that they send each other."""

import csv
import json
import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from support.commands import CommandProcess, printed_commands
from support.parties import free_ports
from veilmeans.pipelines.session.kmeans_from_config import layout_of
from veilmeans.schemas.config import load_config
from veilmeans.transforms.kmeans.initial_centroids import initial_rows
from veilmeans.transforms.kmeans.plaintext_kmeans import lloyd, nearest

pytestmark = pytest.mark.processes
ROWS, CLUSTERS = 30, 3
KIND = [i * 7 % CLUSTERS for i in range(ROWS)]
DATA = {
    "payco": {"amount": [100 * kind + i % 5 for i, kind in enumerate(KIND)], "age": [i % 9 for i in range(ROWS)]},
    "shop": {"visits": [[3, 40, 90][kind] + i % 4 for i, kind in enumerate(KIND)]},
    "bank": {"credit": [[9, 1, 5][kind] * 10 + i % 3 for i, kind in enumerate(KIND)]},
}


@dataclass
class Folder:
    """A company's folder, in which it runs commands."""

    path: Path
    port: int
    outputs: list[str] = field(default_factory=list)

    def start(self, command: str) -> CommandProcess:
        words = command.partition("#")[0].replace("HOST:PORT", f"127.0.0.1:{self.port}").split()
        return CommandProcess(words[1:], self.path.parent / f"log-{time.monotonic_ns()}", self.path)

    def run(self, command: str) -> str:
        code, output = self.start(command).wait()
        assert code == 0, output
        self.outputs.append(output)
        return output

    def write_data(self) -> None:
        columns = DATA[self.path.name]
        with (self.path / "data.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["id", *columns])
            writer.writerows([f"c{i}", *values] for i, values in enumerate(zip(*columns.values(), strict=True)))

    def clusters(self) -> list[int]:
        with (self.path / "clusters.csv").open() as file:
            return [int(row["cluster"]) for row in csv.DictReader(file)]

    def words(self) -> set[str]:
        return set(re.findall(r"^    ((?:[a-z]{5} ){5}[a-z]{5})$", "\n".join(self.outputs), re.MULTILINE))


def send(name: str, source: Folder, *targets: Folder) -> None:
    """Send a file from one company to others, as they would by mail."""
    for target in targets:
        shutil.copy(source.path / name, target.path)


def at_the_same_time(folders: Sequence[Folder], command: str) -> None:
    running = [each.start(command) for each in folders]
    assert [(0, "")] * len(running) == [(code, output if code else "") for code, output in (p.wait() for p in running)]


def plain_labels(folder: Folder, parties: Sequence[str]) -> NDArray[np.intp]:
    """Plaintext Lloyd on all parties' columns, from the first centroids of the run; its last assignment."""
    columns = [np.array(each, float) for name in parties for each in DATA[name].values()]
    rows = np.column_stack([(each - each.min()) / (each.max() - each.min()) for each in columns])
    config = load_config(folder.path / "config.yaml")
    start = rows[list(initial_rows(config.kmeans_with_data, layout_of(config, config.kmeans_with_data)))]
    iterations = json.loads((folder.path / "storage/runs/first/result.json").read_text())["iterations"]
    steps = lloyd(lambda: [rows], start, iterations)
    return nearest(rows, steps[-1].centroids)


@pytest.mark.parametrize(
    ("parties", "dealer"),
    [
        (("payco", "shop"), None),
        pytest.param(("payco", "shop", "bank"), None, marks=pytest.mark.long),
        (("payco", "shop"), "dealer"),
    ],
    ids=["two", "three", "two-and-a-dealer"],
)
def test_the_printed_commands_lead_to_the_clusters_of_plaintext_lloyd(
    tmp_path: Path, parties: tuple[str, ...], dealer: str | None
) -> None:
    members = (*parties, dealer) if dealer else parties
    folders = {
        name: Folder(tmp_path / name, port) for name, port in zip(members, free_ports(len(members)), strict=True)
    }
    for each in folders.values():
        each.path.mkdir()
    payco, *others = folders.values()
    size = f"--rows {ROWS} --columns"
    printed = payco.run(
        f"veilmeans invite --name payco --with {','.join(parties[1:])} --clusters {CLUSTERS} --address HOST:PORT "
        f"{size} 2{f' --dealer {dealer}' if dealer else ''}"
    )
    joins, accepts = printed_commands(printed)[: len(others)], printed_commands(printed)[len(others) :]
    send("payco-invitation.json", payco, *others)
    for join, other in zip(joins, others, strict=True):
        own = "" if other.path.name == dealer else f" {size} 1"
        again, *_ = printed_commands(other.run(f"{join} --yes{own}"))
        assert (again == "veilmeans accept payco-agreement.json") == (len(members) > 2)
        send(f"{other.path.name}-reply.json", other, payco)
    for accept in accepts:
        payco.run(accept)
    if len(members) > 2:
        send("payco-agreement.json", payco, *others)
        for other in others:
            other.run("veilmeans accept payco-agreement.json")
    assert len(set.union(*(each.words() for each in folders.values()))) == 1
    assert all(each.words() for each in folders.values())
    with_data = [folders[name] for name in parties]
    for each in with_data:
        each.write_data()
    commands = [each.partition("#")[0] for each in printed_commands(payco.outputs[-1])]
    *offline, train, results = commands if len(members) == 2 else commands[1:]
    assert [each.split()[1] for each in (*offline, train, results)] == [*["offline"] * bool(dealer), "train", "results"]
    for each in offline:
        at_the_same_time(list(folders.values()), each)
    at_the_same_time(with_data, train)
    plain = plain_labels(payco, parties)
    for each in with_data:
        each.run(results)
        assert each.clusters() == list(plain)
    assert len(set(plain)) == CLUSTERS
