"""A new user's path: `veilmeans init` in an empty folder, two CSV files, and from there only what was printed."""

import csv
import json
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from support.commands import Shell, printed_commands
from veilmeans.pipelines.configure.config_template import Example
from veilmeans.pipelines.configure.next_commands import trial_steps
from veilmeans.pipelines.session.kmeans_from_config import layout_of
from veilmeans.schemas.config import kmeans_with_data, load_config
from veilmeans.transforms.kmeans.initial_centroids import first_rows
from veilmeans.transforms.kmeans.plaintext_kmeans import lloyd, nearest

ROWS, CLUSTERS, CARDS = 40, 3, ("credit", "debit", "gift")
KIND = [i * 7 % CLUSTERS for i in range(ROWS)]
AMOUNT = [100 * kind + i % 5 for i, kind in enumerate(KIND)]
CARD = [CARDS[kind] for kind in KIND]
VISITS = [[3, 40, 90][kind] + i % 4 for i, kind in enumerate(KIND)]


def write_data(folder: Path) -> None:
    """What a user drops in: ids, a column of text, no thought given to shapes."""
    for name, columns in {"payco": {"amount": AMOUNT, "card": CARD}, "shop": {"visits": VISITS}}.items():
        with (folder / name / "data.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["id", *columns])
            writer.writerows([f"c{i}", *values] for i, values in enumerate(zip(*columns.values(), strict=True)))


def plain_labels(folder: Path, iterations: int) -> NDArray[np.intp]:
    """Lloyd on both files, from the rows at which the run starts."""
    hot = [[float(card == each) for each in CARDS] for card in CARD]
    scaled = [(np.array(each) - min(each)) / (max(each) - min(each)) for each in (AMOUNT, VISITS)]
    rows = np.column_stack([scaled[0], np.array(hot), scaled[1]])
    config = load_config(folder / "payco/config.yaml")
    start = rows[list(first_rows(kmeans_with_data(config), layout_of(config, kmeans_with_data(config))))]
    steps = lloyd(lambda: [rows], start, iterations)
    return nearest(rows, steps[-2].centres if len(steps) > 1 else start)


@dataclass(frozen=True)
class User:
    """Who has followed what `veilmeans init` printed, and what was printed on the way."""

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
    assert [command.split()[1] for command in commands if command != "wait"] == [
        "fill", *["offline"] * 3, *["train"] * 2, *["results"] * 2
    ]  # fmt: skip
    return User(shell, shell.check(commands))


def read_clusters(user: User, name: str) -> dict[str, int]:
    with (user.folder / name / "clusters.csv").open() as file:
        return {row["id"]: int(row["cluster"]) for row in csv.DictReader(file)}


def test_following_what_is_printed_ends_with_the_clusters_of_plain_lloyd(user: User) -> None:
    result = json.loads((user.folder / "payco/storage/runs/first/result.json").read_text())
    plain = plain_labels(user.folder, result["iterations"])
    assert read_clusters(user, "payco") == {f"c{i}": label for i, label in enumerate(plain)}
    assert read_clusters(user, "shop") == read_clusters(user, "payco")
    assert len(set(plain)) == CLUSTERS


def test_what_was_found_is_said_on_the_way(user: User) -> None:
    filled, *_, payco, shop = user.outputs
    assert "payco: 40 rows, 4 columns (text as categories: card): amount, card=credit, card=debit, card=gift" in filled
    assert "set everywhere: kmeans.rows=40 kmeans.features.payco=4 kmeans.features.shop=1" in filled
    assert all("is ready; waiting for" in each for each in user.outputs[1:6])
    for name, output, (has, lacks) in (("payco", payco, ("amount", "visits")), ("shop", shop, ("visits", "amount"))):
        assert f"results: {user.folder / name}" in "".join(user.outputs[4:6])
        assert f"assignments: {user.folder / name}/storage/runs/first/assignments.parquet\n" in output
        assert has in output
        assert lacks not in output
    sizes = re.search(r"our rows in it.*", payco)
    assert sizes is not None
    assert sum(map(int, re.findall(r"\d+", sizes[0]))) == ROWS


def test_data_that_have_changed_need_a_new_run_and_the_command_is_said(user: User) -> None:
    """The same folder again, with a row less: each error's own command leads on."""
    for name in ("payco", "shop"):
        file = user.folder / name / "data.csv"
        file.write_text("\n".join(file.read_text().splitlines()[:-1]) + "\n")
    fill = printed_commands(trial_steps(Path(), Example()))[0]
    refused = user.shell.run([fill])[0]
    assert refused.code == 2
    assert "run 'first' was begun with other data" in refused.output
    rename = re.findall("`(veilmeans set .*)`", refused.output)[0]
    assert user.shell.check([rename, fill])[1].endswith("kmeans.features.shop=1\n")
    early, absent = user.shell.run([f"veilmeans {each} --config payco/config.yaml" for each in ("train", "results")])
    assert (early.code, absent.code) == (8, 8)
    assert "run `veilmeans offline` first" in early.output
    assert "run 'first-2' has no results at payco yet: run `veilmeans train` first" in absent.output


def test_a_second_init_and_a_wrong_folder_are_told(user: User) -> None:
    again, lost = user.shell.run(["veilmeans init", "veilmeans status --config config.yaml"])
    assert (again.code, lost.code) == (2, 2)
    assert "payco/config.yaml exists already: choose another --out, or remove it" in again.output
    assert f"the path counts from {user.folder}, where this command was started" in lost.output
