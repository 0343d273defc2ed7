"""The rooms' import graph: one direction, no cycle, no crowded room, no module name twice."""

import re
from collections import Counter

import import_graph
import pytest
from import_graph import LAYERS, ROOMS, ROOT, module_edges, modules, room_edges, room_of

MOST_ENTRIES = 14


def test_every_sub_room_has_its_layer() -> None:
    assert {room_of(module) for module in modules()} == {room for layer in LAYERS for room in layer}


def test_imports_point_down() -> None:
    level = {room: number for number, layer in enumerate(LAYERS) for room in layer}
    upward = [edge for (a, b), edges in room_edges().items() if level[a] <= level[b] for edge in edges]
    assert upward == []


def test_no_module_imports_itself_by_way_of_others() -> None:
    left = {module: set(imported) for module, imported in module_edges().items()}
    while free := [module for module, imported in left.items() if not imported & set(left)]:
        for module in free:
            del left[module]
    assert left == {}


@pytest.mark.parametrize("room", ROOMS)
def test_no_room_is_crowded(room: str) -> None:
    folders = [ROOT / room, *(f for f in (ROOT / room).rglob("*") if f.is_dir() and f.name != "__pycache__")]
    crowded = {str(folder): len(names) for folder in folders if len(names := _entries(folder)) > MOST_ENTRIES}
    assert crowded == {}


def _entries(folder: import_graph.Path) -> list[str]:
    return [entry.name for entry in folder.iterdir() if entry.name not in ("__init__.py", "__pycache__")]


def test_no_module_name_occurs_twice() -> None:
    names = Counter(module.rpartition(".")[2] for module in modules())
    names.update(
        file.stem for file in (ROOT / "tests").rglob("*.py") if file.name not in ("__init__.py", "conftest.py")
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_an_import_inside_a_function_counts() -> None:
    assert "pipelines.train" in module_edges()["pipelines.cli.run_commands"]


def test_the_ways_of_a_row_and_of_a_triple_are_short_and_name_files_that_are_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = re.findall(rf"`((?:{'|'.join(ROOMS)})/[\w/]+\.py)`", text)
    assert [name for name in named if not (ROOT / name).exists()] == []
    for way, most in (("row", 20), ("triple", 15)):
        section = text.split(f"## The way of a {way}")[1].split("\n## ")[0]
        assert 10 <= len(re.findall(r"^\d+\. `", section, re.MULTILINE)) <= most


def test_the_picture_in_contributing_is_of_this_code() -> None:
    assert import_graph.picture() in (ROOT / "CONTRIBUTING.md").read_text()
