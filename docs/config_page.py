"""Generate docs/config.md: every configuration field with its type, default and meaning, from the schema.

Run `python docs/config_page.py > docs/config.md` after a change of the schema.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.config_fields import PATH, ConfigSection, agreement, section_types

_HEAD = """# The configuration

One YAML file for each party. Paths are relative to the file. The file holds paths of secrets, never secrets. A command
refuses a wrong value with one sentence that names the field.

"Agreed" says who decides on a field. "all": every party must have the same value; a handshake compares them before any
data flow, and a difference ends the command. "all, if horizontal": only in the horizontal layout. The other fields are
each party's own and are not sent. The handshake also compares, in the vertical layout, whether `kmeans.id` is set, and
keyed digests of the ids; in the horizontal layout, the names of the encoded columns.

`python docs/config_page.py` prints this page.
"""
_SIMPLE = {str: "text", int: "integer", float: "number", bool: "true or false", Path: "path"}
_BOUNDS = {Ge: ("≥", "ge"), Gt: (">", "gt"), Le: ("≤", "le"), Lt: ("<", "lt")}


def page() -> str:
    """The page, in Markdown."""
    return "\n".join([_HEAD, *_section("", JobConfig)])


def _section(prefix: str, section: type[ConfigSection]) -> Iterator[str]:
    """A section's fields as a table, followed by the sections below it."""
    yield f"## {prefix or 'The file'}\n"
    yield f"{' '.join((section.__doc__ or '').split())}\n"
    yield "| field | type | default | agreed | meaning |"
    yield "|---|---|---|---|---|"
    below: list[tuple[str, type[ConfigSection]]] = []
    for name, field in section.model_fields.items():
        yield _row(name, field)
        below += [(f"{prefix}.{name}" if prefix else name, inner) for inner in section_types(field.annotation)]
    yield ""
    for place, inner in below:
        yield from _section(place, inner)


def _row(name: str, field: FieldInfo) -> str:
    bounds = dict.fromkeys(map(_bound, _limits(field.metadata, field.annotation)))
    kind = ", ".join(["path" if PATH in field.metadata else _kind(field.annotation), *bounds])
    meaning = " ".join((field.description or "see below").split())
    return f"| `{name}` | {kind} | {_default(field)} | {_agreed(field)} | {meaning} |"


def _agreed(field: FieldInfo) -> str:
    mark = agreement(field)
    if mark is None:
        return "see below" if any(section_types(field.annotation)) else "no"
    return "all, if horizontal" if mark.horizontal else "all"


def _limits(metadata: Iterable[Any], annotation: Any) -> Iterator[Any]:
    """The bounds of a number, beside its type or inside it; Field(ge=1) inside a type has its own metadata."""
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
    """A type in plain words."""
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


if __name__ == "__main__":
    print(page(), end="")
