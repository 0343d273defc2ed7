"""The public Python API as a page: signatures and docstrings, out of the code itself.

`python -m veilmeans.pipelines.reference` prints docs/api.md. What is public is what `PUBLIC` names.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from importlib import import_module
from itertools import groupby
from types import ModuleType
from typing import Any

PUBLIC = (
    "pipelines.estimator.VeilKMeans",
    "schemas.config.load_config",
    "pipelines.init.Example",
    "pipelines.init.write_examples",
    "pipelines.init.write_trial",
    "pipelines.keys.make_keys",
    "pipelines.inspect.show_data",
    "pipelines.prepare.prepare_data",
    "pipelines.offline.run_offline",
    "pipelines.train.run_train",
    "pipelines.predict.run_predict",
    "pipelines.plan_kmeans.plan_ahead",
    "pipelines.estimate.JobPlan",
    "pipelines.compare.compare",
    "pipelines.html_report.write_report",
    "pipelines.status.show_status",
    "pipelines.later.run_reveal",
    "pipelines.sums.run_sums",
    "schemas.errors.VeilmeansError",
    "schemas.errors.ConfigError",
    "schemas.errors.InputError",
    "schemas.errors.HandshakeError",
    "schemas.errors.PeerError",
    "schemas.errors.RefusedError",
    "schemas.errors.CertificateError",
    "schemas.errors.StorageError",
    "schemas.errors.recall",
    "transforms.beam_rounds.RunProtocol",
    "transforms.lloyd.ExchangeOperands",
    "transforms.lloyd.LloydIteration",
    "transforms.triples.CheckTriples",
    "transforms.sums.ColumnSums",
    "transforms.seat.Seat",
    "transforms.job.Job",
    "transforms.rounds.Round",
    "transforms.rounds.Sent",
    "transforms.rounds.Inbox",
    "transforms.rounds.Protocol",
    "transforms.rounds.local",
    "transforms.rounds.together",
    "transforms.randomness.Randomness",
    "transforms.bare.run_bare",
    "transforms.trace.trace",
    "transforms.multiply.multiply",
    "transforms.compare.Comparison",
    "transforms.compare.sign",
    "transforms.conjoin.conjoin",
    "transforms.inject.inject",
    "transforms.inject.mux",
    "transforms.inject.to_arithmetic",
    "transforms.to_boolean.to_boolean",
    "transforms.minimum.Tree",
    "transforms.minimum.minimum",
    "transforms.truncate.Truncation",
    "transforms.truncate.truncate",
    "transforms.truncate.truncate_exactly",
    "transforms.divide.reciprocal",
    "transforms.divide.divide",
    "transforms.cross.mask_operand",
    "transforms.cross.cross",
    "transforms.kmeans.KMeans",
)
"""Dotted names below `veilmeans`; those of one module stand together."""

_HEAD = """# The Python API

What the command line does, a notebook or an Airflow task can call; and what protocols and pipelines of one's own are
made of. All else in the package may change. A configuration's fields are in [config.md](config.md).
`python -m veilmeans.pipelines.reference` prints this page; `make docs` writes pages of the whole package.

```python
from pathlib import Path
from veilmeans.pipelines.train import run_train
from veilmeans.schemas.config import load_config
from veilmeans.schemas.errors import PeerError

try:
    folder = run_train(load_config(Path("payco.yaml")))
except PeerError as error:  # a peer was absent: start again later, it goes on
    print(error.sentence, error.code)
```
"""


def page() -> str:
    """The whole page, in Markdown."""
    return "\n".join([_HEAD, *(line for module, names in _by_module() for line in _section(module, names))])


def _by_module() -> Iterator[tuple[str, list[str]]]:
    split = (name.rpartition(".")[::2] for name in PUBLIC)
    for module, group in groupby(split, key=lambda each: each[0]):
        yield module, [name for _, name in group]


def _section(module: str, names: list[str]) -> Iterator[str]:
    """A module's first paragraph, and each of its public names."""
    loaded = import_module(f"veilmeans.{module}")
    yield f"## veilmeans.{module}\n"
    yield f"{_first_paragraph(loaded)}\n"
    for name in names:
        yield from _entry(name, getattr(loaded, name))


def _entry(name: str, thing: Any) -> Iterator[str]:
    definition = _definition(thing)
    yield f"### {name}\n"
    yield f"```python\n{_signature(definition)}\n```\n"
    yield f"{inspect.getdoc(thing)}\n"
    for method in _methods(definition):
        doc = " ".join((ast.get_docstring(method) or "").split())
        yield f"- `{method.name}{_arguments(method)}`{': ' if doc else ''}{doc}"
    if any(_methods(definition)):
        yield ""


def _definition(thing: Any) -> ast.ClassDef | ast.FunctionDef:
    """As it is written: types have the names there that a reader knows."""
    found = ast.parse(textwrap.dedent(inspect.getsource(thing))).body[0]
    if not isinstance(found, ast.ClassDef | ast.FunctionDef):
        raise TypeError(f"{thing} is neither a class nor a function")
    return found


def _signature(definition: ast.ClassDef | ast.FunctionDef) -> str:
    if isinstance(definition, ast.FunctionDef):
        return f"def {definition.name}{_arguments(definition)}"
    bases = ", ".join(map(ast.unparse, definition.bases))
    fields = [f"    {line}" for line in _fields(definition)]
    return "\n".join([f"class {definition.name}({bases}):" if bases else f"class {definition.name}:", *fields])


def _fields(definition: ast.ClassDef) -> Iterator[str]:
    """The public fields with their types; a default that is made anew is shown as …"""
    for each in definition.body:
        if isinstance(each, ast.AnnAssign | ast.Assign):
            target = each.target if isinstance(each, ast.AnnAssign) else each.targets[0]
            if not ast.unparse(target).startswith("_"):
                yield re.sub(r" = (field|Field)\(.*", " = …", ast.unparse(each), flags=re.DOTALL)


def _arguments(function: ast.FunctionDef) -> str:
    """What goes in, without `self`, and what comes out; of a property only that."""
    inside = re.sub(r"^(self|cls)(, )?", "", ast.unparse(function.args))
    returns = ast.unparse(function.returns).strip("'") if function.returns else "None"
    is_property = any("property" in ast.unparse(each) for each in function.decorator_list)
    return f": {returns}" if is_property else f"({inside}) -> {returns}"


def _methods(definition: ast.ClassDef | ast.FunctionDef) -> list[ast.FunctionDef]:
    """Public methods that say what they do, and what goes in and out of a Beam transform."""
    body = definition.body if isinstance(definition, ast.ClassDef) else []
    found = [each for each in body if isinstance(each, ast.FunctionDef) and not each.name.startswith("_")]
    return [each for each in found if ast.get_docstring(each) or each.name == "expand"]


def _first_paragraph(module: ModuleType) -> str:
    return " ".join((inspect.getdoc(module) or "").split("\n\n")[0].split())


if __name__ == "__main__":
    print(page(), end="")
