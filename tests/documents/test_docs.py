"""What the pages name is there: files, headings, tests, stages, exit codes."""

import re
from pathlib import Path

import pytest

from veilmeans.io.exchange.exchange import HANDSHAKE
from veilmeans.pipelines import offline
from veilmeans.pipelines.session import triple_claim as triples
from veilmeans.pipelines.session.session import FAREWELL
from veilmeans.schemas import errors
from veilmeans.transforms.kmeans import steps as dag

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
ROOMS = "schemas|crypto|transforms|io|pipelines|tests|benchmarks"


def text(page: str) -> str:
    return (ROOT / "docs" / page).read_text()


def anchors(page: Path) -> set[str]:
    """Headings as links name them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text()):
        file = page.parent / target if target else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), f"{target}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_are_named_are_there(page: Path) -> None:
    for name in re.findall(rf"`((?:{ROOMS})/[\w/]+\.py)`", page.read_text()):
        assert (ROOT / name).exists(), name


def test_every_stage_is_in_the_table_of_messages() -> None:
    table = text("security.md").split("## What each message is")[1].split("\n## ")[0]
    named = set(re.findall(r"`([\w.-]+)`", "".join(re.findall(r"^\| (.*?) \|", table, re.MULTILINE))))
    steps = {step.name for step in dag._STEPS}
    assert steps | {HANDSHAKE, FAREWELL, triples._STAGE, offline.SEEDS, offline._STAGE} <= named


def test_every_stage_is_in_the_table_of_costs() -> None:
    table = text("kmeans.md").split("## Rounds and bytes")[1]
    assert {step.name for step in dag._STEPS} == set(re.findall(r"^\| `([\w-]+)`", table, re.MULTILINE))


def test_every_exit_code_says_what_to_do() -> None:
    table = text("operations.md").split("## Exit codes")[1].split("\n## ")[0]
    codes = set(map(int, re.findall(r"^\| (\d+) \|", table, re.MULTILINE)))
    assert codes == {0, *errors._BY_CODE}


def test_the_example_for_airflow_retries_what_the_table_says() -> None:
    page = text("operations.md")
    advice = re.findall(r"^\| (\d+) \|.*\| ([^|]*) \|$", page, re.MULTILINE)
    never = {int(code) for code, retry in advice if retry == "no"}
    found = re.search(r"\"skip_on_exit_code\": \[([\d, ]+)\]", page)
    assert found is not None
    assert {int(code) for code in found[1].split(",")} == never
