"""The pages name files, headings, steps and exit codes that exist, and show the costs that the protocols have."""

import re
from pathlib import Path

import pytest
from cost_tables import step_names, with_tables

from veilmeans.io.exchange.exchange import HANDSHAKE
from veilmeans.pipelines import offline
from veilmeans.pipelines.session import triple_claim as triples
from veilmeans.pipelines.session.session import FAREWELL
from veilmeans.schemas import errors
from veilmeans.transforms.offline import dealer
from veilmeans_airflow.command_process import NEEDS_A_PERSON, WORTH_A_RETRY

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
ROOMS = "schemas|crypto|transforms|io|pipelines|tests|benchmarks"


def text(page: str) -> str:
    return (ROOT / "docs" / page).read_text()


def anchors(page: Path) -> set[str]:
    """The headings of a page as links name them."""
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


def test_every_step_is_in_the_table_of_messages() -> None:
    table = text("security.md").split("## What each message is")[1].split("\n## ")[0]
    named = set(re.findall(r"`([\w.-]+)`", "".join(re.findall(r"^\| (.*?) \|", table, re.MULTILINE))))
    assert step_names() | {HANDSHAKE, FAREWELL, triples._STAGE, dealer.SEEDS, offline._STAGE} <= named


@pytest.mark.parametrize("page", ["kmeans.md", "protocol.md"])
def test_tables_of_costs_are_those_of_the_protocols(page: str) -> None:
    """Run `python docs/cost_tables.py` if this fails."""
    assert text(page) == with_tables(text(page))


def test_every_step_is_in_a_table_of_costs() -> None:
    tables = text("kmeans.md").split("## Rounds and bytes")[1]
    assert [name for name in step_names() if f"| `{name}` |" not in tables] == []


def test_every_exit_code_says_what_to_do() -> None:
    table = text("operations.md").split("## Exit codes")[1].split("\n## ")[0]
    codes = set(map(int, re.findall(r"^\| (\d+) \|", table, re.MULTILINE)))
    assert codes == {0, *errors._BY_CODE}


def test_airflow_retries_what_the_tables_say() -> None:
    advice = re.findall(r"^\| (\d+) \|.*\| ([^|]*) \|$", text("operations.md"), re.MULTILINE)
    never = {int(code) for code, retry in advice if retry == "no"}
    stops = re.findall(r"^\| (\d+) \|.*\| (stop[^|]*) \|$", text("commands.md"), re.MULTILINE)
    listed = re.search(r"skip_on_exit_code=\[([\d, ]+)\]", text("airflow.md"))
    assert listed is not None
    assert never == {int(code) for code in listed[1].split(",")} == {int(code) for code, _ in stops}
    assert never == set(NEEDS_A_PERSON)
    assert never | set(WORTH_A_RETRY) == set(errors._BY_CODE)
