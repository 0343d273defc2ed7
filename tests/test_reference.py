"""The page about the Python API is the code's own, and says something about every public name."""

from importlib import import_module
from pathlib import Path

import pytest

from veilmeans.pipelines.reference import PUBLIC, page

PAGE = page()


def test_the_page_is_what_the_code_says() -> None:
    assert (Path(__file__).parents[1] / "docs/api.md").read_text() == PAGE


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_its_module_s_own_and_described(name: str) -> None:
    module, _, last = name.rpartition(".")
    thing = getattr(import_module(f"veilmeans.{module}"), last)
    assert thing.__module__ == f"veilmeans.{module}"
    first = thing.__doc__.splitlines()[0]
    assert first in PAGE.split(f"### {last}\n", 1)[1].split("\n### ")[0]


def test_every_module_has_one_section() -> None:
    sections = [line for line in PAGE.splitlines() if line.startswith("## ")]
    assert len(sections) == len(set(sections)) == len({name.rpartition(".")[0] for name in PUBLIC})


def test_arguments_fields_and_methods_are_shown_as_they_are_written() -> None:
    shown = PAGE
    assert "def minimum(tree: Tree, k: int, parties: int) -> Protocol\n" in shown
    assert "class PeerError(VeilmeansError):\n    code = 5\n" in shown
    assert "- `after(work: Local) -> Protocol`: The same with local work before the first round's send.\n" in shown
    assert "- `width: int`: Bits of the words" in shown
    assert "- `expand(done: beam.PCollection[int]) -> beam.PCollection[int]`\n" in shown
