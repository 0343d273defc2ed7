"""Marks of configuration fields: who must agree on a field, and whether it is a path.

A mark stands beside the field's type, `rows: Annotated[int, AGREED_IN_RUNS] = Field(…)`. A field without a mark is
private: it is compared with nobody, so a forgotten mark discloses nothing.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict
from pydantic.fields import FieldInfo

from veilmeans.schemas.address import NAME, NAME_RULE

Command = Literal["offline", "align", "train", "predict", "reveal"]  # the commands that begin with a handshake


@dataclass(frozen=True)
class Agreed:
    """The mark of a field that must be equal at all parties.

    commands     compare it in their handshakes
    horizontal   compare it in the horizontal layout only
    bound        a run is bound to it: another value needs another run name
    of_model     a prediction must have it as its model has it
    optional     handshakes and bindings leave it out while it is 0: runs without it stay as they were
    """

    commands: tuple[Command, ...]
    horizontal: bool = False
    bound: bool = True
    of_model: bool = False
    optional: bool = False

    def compares(self, command: Command, vertical: bool) -> bool:
        """True if the handshake of `command` compares the field."""
        return command in self.commands and not (self.horizontal and vertical)


AGREED_BY_ALL = Agreed(("offline", "train", "predict", "reveal"))  # also the dealer must have it
AGREED_IN_ALIGNMENT = Agreed(("align",))
AGREED_OFFLINE = Agreed(("offline",))
AGREED_IN_RUNS = Agreed(("train", "predict"))
AGREED_IN_TRAINING = Agreed(("train",))
AGREED_IN_PREDICTION = Agreed(("predict",))
PART_OF_MODEL = Agreed(("train", "predict"), of_model=True)
MINIMUM_SIZE = Agreed(("train", "predict", "reveal"), of_model=True, optional=True)
REVEAL_POLICY = Agreed(("train", "predict", "reveal"), bound=False)  # may differ from opening to opening of one run


PATH = "path"
"""The mark of a path or a glob, relative to the configuration file; with a scheme (gs://…) it stays as it is."""
CONNECTION = "connection"
"""The mark of a field on which an open exchange depends: equal configurations share one exchange in a process."""


def _check_name(value: str) -> str:
    if not NAME.fullmatch(value):
        raise ValueError(f"{value!r} must be {NAME_RULE}")
    return value


Name = Annotated[str, AfterValidator(_check_name)]
NameList = Annotated[tuple[str, ...], AfterValidator(lambda names: tuple(map(_check_name, names)))]


class ConfigSection(BaseModel):
    """A section of a configuration: frozen, and without fields that the schema does not know.

    A field has its description in `Field(…)`, or below it as its docstring if it is long.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


def agreed_fields(section: ConfigSection, command: Command, vertical: bool) -> dict[str, Any]:
    """The fields that the handshake of `command` compares: dotted name -> JSON value."""
    return dict(_select(section, lambda mark: mark.compares(command, vertical)))


def terms_fields(section: ConfigSection, vertical: bool) -> dict[str, Any]:
    """The fields that some handshake compares: dotted name -> JSON value. All that a party may send of its terms."""
    return dict(_select(section, lambda mark: not (mark.horizontal and vertical), complete=True))


def bound_fields(section: ConfigSection, command: Command) -> dict[str, Any]:
    """The fields to which a run of `command` is bound: dotted name -> JSON value."""
    return dict(_select(section, lambda mark: mark.bound and command in mark.commands))


def model_fields(section: ConfigSection) -> dict[str, Any]:
    """The fields that a prediction must have as its model has them: dotted name -> JSON value."""
    return dict(_select(section, lambda mark: mark.of_model, complete=True))


def agreement(field: FieldInfo) -> Agreed | None:
    """The mark of a field that parties must agree on; None if it is private."""
    return next((mark for mark in field.metadata if isinstance(mark, Agreed)), None)


def connection_fields(kind: type[ConfigSection]) -> set[str]:
    """The names of a section's fields with the mark CONNECTION."""
    return {name for name, field in kind.model_fields.items() if CONNECTION in field.metadata}


def map_paths(kind: type[ConfigSection], content: Mapping[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    """Apply `change` to all paths in a section's content.

    The content may be malformed, as it is before the schema has checked it: then it is left as it is.
    """
    changed = dict(content)
    for name, field in kind.model_fields.items():
        if name in content and PATH in field.metadata:
            changed[name] = change(content[name]) if isinstance(content[name], str) else content[name]
        elif name in content:
            changed[name] = _map_value(field.annotation, content[name], change)
    return changed


def section_types(annotation: Any) -> Iterator[type[ConfigSection]]:
    """All types of sections that occur in a field's type."""
    if isinstance(annotation, type) and issubclass(annotation, ConfigSection):
        yield annotation
    for each in get_args(annotation):
        yield from section_types(each)


def _select(
    section: ConfigSection, wanted: Callable[[Agreed], bool], prefix: str = "", complete: bool = False
) -> Iterator[tuple[str, Any]]:
    """Yield the fields that are wanted; `complete`: also optional ones that are 0."""
    for name, field in type(section).model_fields.items():
        value, mark = getattr(section, name), agreement(field)
        if isinstance(value, ConfigSection):
            yield from _select(value, wanted, f"{prefix}{name}.", complete)
        elif mark is not None and wanted(mark) and (value or complete or not mark.optional):
            yield f"{prefix}{name}", _as_json(value, wanted)


def _as_json(value: Any, wanted: Callable[[Agreed], bool]) -> Any:
    """A field's value; of sections in it only what is wanted."""
    if isinstance(value, ConfigSection):
        return dict(_select(value, wanted))
    if isinstance(value, Mapping):
        return {name: _as_json(each, wanted) for name, each in value.items()}
    return [_as_json(each, wanted) for each in value] if isinstance(value, tuple) else value


def _map_value(annotation: Any, value: Any, change: Callable[[str], str]) -> Any:
    """Change paths in the sections that a field holds, alone, as an alternative, or by name."""
    if not isinstance(value, Mapping):
        return value
    if isinstance(annotation, type) and issubclass(annotation, ConfigSection):
        return map_paths(annotation, value, change)
    if get_origin(annotation) is dict:
        return {name: _map_value(get_args(annotation)[1], each, change) for name, each in value.items()}
    if get_origin(annotation) in (Union, UnionType):
        fitting = [each for each in get_args(annotation) if any(section_types(each))]
        return _map_value(fitting[0], value, change) if fitting else value
    return value


def check_capacity(
    capacity: int | dict[str, int], rows: int | dict[str, int] | None, parties: Collection[str], vertical: bool
) -> None:
    """Refuse a triple store that is for fewer rows than the run has; `rows` is None while nobody knows them."""
    if isinstance(capacity, int) != vertical:
        raise ValueError(f"triples.rows: must be one number{'' if vertical else ' for each party'}")
    if isinstance(capacity, dict) and set(capacity) != set(parties):
        raise ValueError(f"triples.rows: must name exactly {', '.join(parties)}")
    for party in parties if rows is not None else ():
        count, most = (each[party] if isinstance(each, dict) else each or 0 for each in (rows, capacity))
        if count > most:
            whose = "" if vertical else f" of {party}"
            raise ValueError(
                f"triples.rows: the store is for {most:,} rows{whose}, and kmeans.rows is {count:,}: make a new "
                "store for more rows, under a new name"
            )
