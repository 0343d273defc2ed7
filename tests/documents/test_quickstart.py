"""docs/quickstart.md: its commands run in order and print what the page shows ("…" stands for any text)."""

import csv
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.commands import Shell, commands_in

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/quickstart.md").read_text()
PAYCO, BOTH = "payco/config.yaml", ("payco", "shop")


@dataclass(frozen=True)
class Block:
    """A fenced block of the page."""

    kind: str
    text: str


def blocks() -> list[Block]:
    return [Block(*found) for found in re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)]


def errors() -> list[str]:
    """The error messages in the table of errors."""
    return re.findall(r"^\| `(.*?)` \|", TEXT.partition("## When something goes wrong")[2], re.MULTILINE)


def shown_in(line: str, output: str) -> bool:
    """True if a line of the page is a line of the output."""
    pattern = ".*".join(map(re.escape, line.split("…")))
    return re.search(rf"^(error: )?{pattern}$", output, re.MULTILINE) is not None


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """A shell after all commands of the page except the installation."""
    top = tmp_path_factory.mktemp("quickstart")
    (top / "here").mkdir()
    shell, printed = Shell(top / "here", top / "logs"), ""
    for block in blocks():
        if block.kind == "bash":
            printed = "\n".join(shell.check(commands_in(block.text)))
        elif block.kind == "text":
            missing = [line for line in block.text.splitlines() if not shown_in(line.rstrip(), printed)]
            assert not missing, f"{missing} is not in\n{printed}"
    return shell


@pytest.mark.processes
def test_its_commands_lead_to_three_groups(shell: Shell) -> None:
    found = []
    for name in BOTH:
        with (shell.folder / name / "clusters.csv").open() as file:
            found.append([(row["id"], row["cluster"]) for row in csv.DictReader(file)])
    assert found[0] == found[1]
    with (shell.folder / "payco/week2.csv").open() as file:
        found[0] += [(row["id"], row["cluster"]) for row in csv.DictReader(file)]
    assert sorted(each for each, _ in found[0]) == [f"c{i:02}" for i in range(1, 16)]
    cards: dict[str, str] = {}
    for data in ("data.csv", "new.csv"):
        with (shell.folder / "payco" / data).open() as file:
            cards |= {row["id"]: row["card"] for row in csv.DictReader(file)}
    assert len({(cards[each], cluster) for each, cluster in found[0]}) == len(set(cards.values())) == 3


@pytest.mark.processes
def test_its_errors_are_printed_in_those_words(shell: Shell) -> None:
    lost, rows, store, absent, differ = errors()
    configs = " ".join(f"--config {name}/config.yaml" for name in BOTH)
    at_both = [f"veilmeans train --config {name}/config.yaml" for name in BOTH]
    changes = "veilmeans config set --config payco/config.yaml"
    shell.check(
        [
            f"veilmeans config set {configs} run=second align.name=first triples.store=third exchange.timeout_s=30",
            *(f"veilmeans offline --config {name}/config.yaml &" for name in BOTH),
            "wait",
        ]
    )
    storage, lost_folder = shell.folder / "shop/storage", shell.folder / "shop/lost"
    storage.rename(lost_folder)
    for kept in ("aligned", "runs/align-first"):
        shutil.copytree(lost_folder / kept, storage / kept)
    ran = shell.run(
        [
            "veilmeans train --config config.yaml",
            f"{changes} triples.store=second kmeans.rows=13 exchange.timeout_s=0.5",
            at_both[0],
            f"{changes} kmeans.rows=null",
            at_both[0],
            f"veilmeans config set {configs} triples.store=third exchange.timeout_s=30",
            *(f"{each} &" for each in at_both),
            "wait",
            f"veilmeans config set {configs} triples.store=second",
            f"{changes} triples.runs=2",
            *(f"{each} &" for each in at_both),
            "wait",
        ]
    )
    for number, code, sentence in (
        (0, 2, lost),
        (2, 2, rows),
        (4, 5, absent),
        (7, 4, store.replace("first", "third")),
        (10, 4, differ),
    ):
        assert (ran[number].code, shown_in(sentence, ran[number].output)) == (code, True), ran[number]


@pytest.mark.processes
def test_its_files_are_those_that_the_commands_name(shell: Shell) -> None:
    """What is printed for companies that have only their own folders leads to the files that the page sends."""
    named = {"payco": {"invitation", "answer"}, "shop": {"reply", "proposal"}}
    for name, kinds in named.items():
        assert all((shell.folder / name / f"{name}-{kind}.json").exists() for kind in kinds)


def test_the_installation_is_that_of_the_makefile_without_development_tools() -> None:
    venv, install, activate = next(commands_in(block.text) for block in blocks() if block.kind == "sh")
    recipe = (ROOT / "Makefile").read_text().replace("$(PYTHON)", "python3.11").replace("$(VENV)", ".venv")
    recipe = recipe.replace("$(BIN)", ".venv/bin")
    assert f"\t{venv}\n" in recipe
    assert re.sub(r" --[\w-]+|\"|\[dev\]", "", recipe).count(f"\t{install}\n") == 1
    assert activate == "source .venv/bin/activate"


def test_every_link_leads_somewhere() -> None:
    for name in re.findall(r"\]\((\w+\.md)\)", TEXT):
        assert (ROOT / "docs" / name).exists()
