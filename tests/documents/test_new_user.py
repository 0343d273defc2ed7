"""A new user's path: `veilmeans init` in an empty folder, two CSV files, and then only the printed commands."""

import csv
import json
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from support.commands import Shell, printed_commands
from veilmeans.pipelines.configure.config_template import TemplateValues
from veilmeans.pipelines.configure.next_commands import trial_commands
from veilmeans.pipelines.session.kmeans_from_config import layout_of
from veilmeans.schemas.config import load_config
from veilmeans.transforms.kmeans.initial_centroids import initial_rows
from veilmeans.transforms.kmeans.plaintext_kmeans import lloyd, nearest

pytestmark = pytest.mark.processes
ROWS, CLUSTERS, CARDS = 40, 3, ("credit", "debit", "gift")
KIND = [i * 7 % CLUSTERS for i in range(ROWS)]
AMOUNT = [100 * kind + i % 5 for i, kind in enumerate(KIND)]
CARD = [CARDS[kind] for kind in KIND]
VISITS = [[3, 40, 90][kind] + i % 4 for i, kind in enumerate(KIND)]


def write_data(folder: Path) -> None:
    """Write a user's data: ids, numbers and a text column."""
    for name, columns in {"payco": {"amount": AMOUNT, "card": CARD}, "shop": {"visits": VISITS}}.items():
        with (folder / name / "data.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["id", *columns])
            writer.writerows([f"c{i}", *values] for i, values in enumerate(zip(*columns.values(), strict=True)))


def plain_labels(folder: Path, iterations: int) -> NDArray[np.intp]:
    """Run plaintext Lloyd on both files, from the first centroids of the run; its last assignment."""
    hot = [[float(card == each) for each in CARDS] for card in CARD]
    scaled = [(np.array(each) - min(each)) / (max(each) - min(each)) for each in (AMOUNT, VISITS)]
    rows = np.column_stack([scaled[0], np.array(hot), scaled[1]])
    config = load_config(folder / "payco/config.yaml")
    start = rows[list(initial_rows(config.kmeans_with_data, layout_of(config, config.kmeans_with_data)))]
    steps = lloyd(lambda: [rows], start, iterations)
    return nearest(rows, steps[-1].centroids)


@dataclass(frozen=True)
class User:
    """A user who has run the commands that `veilmeans init` printed, and their outputs."""

    shell: Shell
    outputs: list[str]

    @property
    def folder(self) -> Path:
        return self.shell.folder


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> User:
    top = tmp_path_factory.mktemp("user")
    (top / "empty").mkdir()
    shell = Shell(top / "empty", top / "logs")
    printed = shell.check(["veilmeans init"])[0]
    write_data(shell.folder)
    shell.check(re.findall(r"^Another number of clusters, before step 3: (.*=3)$", printed, re.MULTILINE))
    commands = printed_commands(printed)
    assert [re.sub(r"veilmeans (config )?(\w+).*", r"\1\2", command) for command in commands if command != "wait"] == [
        "config fill", *["train"] * 2, *["results"] * 2
    ]  # fmt: skip
    return User(shell, shell.check(commands))


def read_clusters(user: User, name: str) -> dict[str, int]:
    with (user.folder / name / "clusters.csv").open() as file:
        return {row["id"]: int(row["cluster"]) for row in csv.DictReader(file)}


def test_the_printed_commands_lead_to_the_clusters_of_plaintext_lloyd(user: User) -> None:
    result = json.loads((user.folder / "payco/storage/runs/first/result.json").read_text())
    plain = plain_labels(user.folder, result["iterations"])
    assert read_clusters(user, "payco") == {f"c{i}": label for i, label in enumerate(plain)}
    assert read_clusters(user, "shop") == read_clusters(user, "payco")
    assert len(set(plain)) == CLUSTERS


def test_outputs_show_the_data_the_progress_and_the_results(user: User) -> None:
    filled, *_, payco, shop = user.outputs
    assert "payco: 40 rows, 4 columns (text as categories: card): amount, card=credit, card=debit, card=gift" in filled
    assert "set everywhere: kmeans.rows=40 kmeans.features.payco=4 kmeans.features.shop=1" in filled
    assert all("there is no triple store 'first' yet: making it with" in each for each in user.outputs[1:3])
    assert not (user.folder / "dealer").exists()
    for name, output, (has, lacks) in (("payco", payco, ("amount", "visits")), ("shop", shop, ("visits", "amount"))):
        assert f"results: {user.folder / name}" in "".join(user.outputs[1:3])
        assert f"assignments: {user.folder / name}/storage/runs/first/assignments.parquet\n" in output
        assert has in output
        assert lacks not in output
    sizes = re.search(r"our rows in it.*", payco)
    assert sizes is not None
    assert sum(map(int, re.findall(r"\d+", sizes[0]))) == ROWS


def test_changed_data_need_a_new_run_and_the_error_has_the_command(user: User) -> None:
    for name in ("payco", "shop"):
        file = user.folder / name / "data.csv"
        file.write_text("\n".join(file.read_text().splitlines()[:-1]) + "\n")
    fill = printed_commands(trial_commands(Path(), TemplateValues()))[0]
    refused = user.shell.run([fill])[0]
    assert refused.code == 2
    assert "'first'" in refused.output
    rename = re.findall("`(veilmeans config set .*)`", refused.output)[0]
    assert user.shell.check([rename, fill])[1].endswith("kmeans.features.shop=1\n")
    early, absent = user.shell.run(
        ["veilmeans train --config payco/config.yaml --dry-run", "veilmeans results --config payco/config.yaml"]
    )
    assert (early.code, absent.code) == (0, 8)
    assert "no triple store 'first-2' yet: the run makes it first" in early.output
    assert re.search("'first-2'.*`veilmeans train`", absent.output)


def test_a_second_init_and_a_wrong_folder_are_refused(user: User) -> None:
    again, lost = user.shell.run(["veilmeans init", "veilmeans status --config config.yaml"])
    assert (again.code, lost.code) == (2, 2)
    assert "payco/config.yaml" in again.output
    assert str(user.folder) in lost.output
