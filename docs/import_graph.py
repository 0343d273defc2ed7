"""The import graph of the rooms, computed from the code: for a test, and for the picture in CONTRIBUTING.md.

`python docs/import_graph.py` prints the picture (Mermaid). Imports inside functions and under TYPE_CHECKING count, and
so do module names in strings.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = ("schemas", "crypto", "transforms", "io", "pipelines")
LAYERS: tuple[tuple[str, ...], ...] = (
    ("schemas",),
    ("crypto",),
    ("crypto.he", "crypto.lattice", "crypto.ot"),
    ("crypto.ot.kinds", "crypto.ot.psi"),
    ("io.files",),
    ("io.storage", "io.messages"),
    ("io.sources", "io.exchange", "io.ledgers"),
    ("transforms.rounds",),
    ("transforms.primitives",),
    ("transforms.products",),
    ("transforms.statistics",),
    ("transforms.openings",),
    ("transforms.offline",),
    ("transforms.alignment",),
    ("transforms.kmeans",),
    ("transforms.auditing",),
    ("pipelines.session",),
    ("pipelines.planning",),
    ("pipelines.reporting",),
    ("pipelines",),
    ("pipelines.configure",),
    ("pipelines.configure.agreement",),
    ("pipelines.local",),
    ("pipelines.cli",),
)
"""From the bottom up: a sub-room imports only from layers below its own. `pipelines` are the jobs themselves."""

Edge = tuple[str, str]


def modules() -> dict[str, Path]:
    """Every module of the rooms, by its dotted name without `veilmeans.`."""
    files = (file for room in ROOMS for file in sorted((ROOT / room).rglob("*.py")) if file.name != "__init__.py")
    return {".".join(file.relative_to(ROOT).with_suffix("").parts): file for file in files}


def room_of(module: str) -> str:
    """The sub-room of a module, or the room where it lies in none."""
    return module.rpartition(".")[0]


def imports_of(file: Path, known: dict[str, Path]) -> set[str]:
    """The modules of the rooms that a file imports, wherever in it."""
    found: set[str] = set()
    for name in _named(ast.parse(file.read_text())):
        module = name.removeprefix("veilmeans.")
        if name.startswith("veilmeans.") and module in known:
            found.add(module)
        elif name.startswith("veilmeans.") and room_of(module) in known:
            found.add(room_of(module))
    return found


def _named(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(r"^veilmeans(?:\.\w+)+$", node.value)


def module_edges() -> dict[str, set[str]]:
    known = modules()
    return {module: imports_of(file, known) - {module} for module, file in known.items()}


def room_edges() -> dict[Edge, list[Edge]]:
    """(importing sub-room, imported sub-room) -> the imports between their modules."""
    edges: dict[Edge, list[Edge]] = defaultdict(list)
    for module, imported in module_edges().items():
        for other in imported:
            if room_of(module) != room_of(other):
                edges[room_of(module), room_of(other)].append((module, other))
    return edges


def picture() -> str:
    """The sub-rooms and their imports, without those that follow from others."""
    edges = set(room_edges())
    direct = {(a, b) for a, b in edges if not any((a, c) in edges and _reaches(c, b, edges) for c in _rooms() - {a, b})}
    lines = [f"    {_label(a)} --> {_label(b)}" for a, b in sorted(direct)]
    return "\n".join(["graph TD", *lines])


def _rooms() -> set[str]:
    return {room for layer in LAYERS for room in layer}


def _reaches(start: str, end: str, edges: set[Edge]) -> bool:
    return (start, end) in edges or any(_reaches(b, end, edges) for a, b in edges if a == start)


def _label(room: str) -> str:
    return f'{room.replace(".", "_")}["{room.replace(".", "/") + ("/ (jobs)" if room == "pipelines" else "")}"]'


if __name__ == "__main__":
    print(picture())
