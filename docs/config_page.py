"""The configuration as a page: every field with its type, default and meaning, out of the schema itself.

`python docs/config_page.py` prints docs/config.md.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.kmeans_config import ConfigSection

_HEAD = """# The configuration

One YAML file for each party. Paths are relative to the file; only paths of secrets stand in it, never secrets. A
mistake ends a command with one sentence that names the field. `python docs/config_page.py` prints this page.
"""
_SIMPLE = {str: "text", int: "whole number", float: "number", bool: "true or false", Path: "path"}
_BOUNDS = {Ge: ("≥", "ge"), Gt: (">", "gt"), Le: ("≤", "le"), Lt: ("<", "lt")}


def page() -> str:
    """The whole page, in Markdown."""
    return "\n".join([_HEAD, *_section("", JobConfig)])


def _section(prefix: str, part: type[ConfigSection]) -> Iterator[str]:
    """A part's fields as a table, and after it the parts below it."""
    yield f"## {prefix or 'The file'}\n"
    yield f"{' '.join((part.__doc__ or '').split())}\n"
    yield "| field | type | default | meaning |"
    yield "|---|---|---|---|"
    below: list[tuple[str, type[ConfigSection]]] = []
    for name, field in part.model_fields.items():
        yield _row(name, field)
        below += [(f"{prefix}.{name}" if prefix else name, inner) for inner in _parts(field.annotation)]
    yield ""
    for place, inner in below:
        yield from _section(place, inner)


def _row(name: str, field: FieldInfo) -> str:
    found = dict.fromkeys(map(_bound, _limits(field.metadata, field.annotation)))
    kind = ", ".join([_kind(field.annotation), *found])
    return f"| `{name}` | {kind} | {_default(field)} | {field.description or 'see below'} |"


def _limits(metadata: Iterable[Any], annotation: Any) -> Iterator[Any]:
    """What bounds a number: beside the type, or inside it; Field(ge=1) inside a type has a bound of its own."""
    for each in metadata:
        yield from (
            _limits(each.metadata, None) if isinstance(each, FieldInfo) else [each] if type(each) in _BOUNDS else []
        )
    if get_origin(annotation) in (Union, UnionType, Annotated):
        inside = get_args(annotation)
        yield from _limits(inside[1:] if get_origin(annotation) is Annotated else (), None)
        for each in inside:
            yield from _limits((), each)


def _bound(limit: Any) -> str:
    sign, name = _BOUNDS[type(limit)]
    return f"{sign} {getattr(limit, name):,}"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "needed"
    value = field.default if field.default is not PydanticUndefined else None
    if value is None or value in ((), {}):
        return "none"
    return (
        "see below"
        if isinstance(value, ConfigSection)
        else f"`{str(value).lower() if isinstance(value, bool) else value}`"
    )


def _kind(annotation: Any) -> str:
    """A type in a reader's words."""
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kind(inside[0])
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in inside)
    if origin in (Union, UnionType):
        return " or ".join(_kind(each) for each in inside if each is not NoneType)
    if origin is tuple:
        return f"list of {_kind(inside[0])}" if len(inside) == 2 and inside[1] is Ellipsis else "list"
    if origin is dict:
        return f"name → {_kind(inside[1])}"
    if isinstance(annotation, type) and issubclass(annotation, ConfigSection):
        return "fields below"
    return _SIMPLE.get(annotation, "value")


def _parts(annotation: Any) -> Iterator[type[ConfigSection]]:
    """The parts that a type is made of."""
    if isinstance(annotation, type) and issubclass(annotation, ConfigSection):
        yield annotation
    for inside in get_args(annotation):
        yield from _parts(inside)


if __name__ == "__main__":
    print(page(), end="")
