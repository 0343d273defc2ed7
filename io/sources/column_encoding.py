"""What the columns of a source become: each field of it one column of numbers, or many."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from veilmeans.schemas.column_names import NameRange, Names
from veilmeans.schemas.errors import InputError

Kind = Literal["number", "matrix", "one_hot", "multi_hot"]
Missing = Literal["error", "zero", "mean"]
Unseen = Literal["error", "ignore"]
HOT: tuple[Kind, ...] = ("one_hot", "multi_hot")
"""Kinds whose columns are 0 or 1, sparse, and never scaled."""


@dataclass(frozen=True)
class ColumnEncoding:
    """A field of the source, and the `width` columns that it becomes.

    number      the value as it is; one that is missing is `fill`, or not a number as long as that is not known
    matrix      the columns of a sparse matrix, whose zeros stay zeros; svmlight indices count from `base`. Where only
                some are taken, `chosen` has the first and one past the last of each run of them
    one_hot     a column for each of `values`, which is 1 where the field has that value
    multi_hot   `width` columns, of which those are 1 whose numbers are in the field's list
    """

    name: str
    kind: Kind = "number"
    width: int = 1
    values: tuple[str, ...] = ()
    base: int = 0
    chosen: tuple[tuple[int, int], ...] = ()
    unseen: Unseen = "error"
    missing: Missing = "error"
    fill: float | None = None

    @property
    def parts(self) -> tuple[NameRange, ...]:
        """The columns' names, as `Names` has them."""
        if self.kind == "one_hot":
            return tuple(f"{self.name}={value}".replace("\n", " ") for value in self.values)
        if self.kind == "number":
            return (self.name,)
        if self.chosen:
            return tuple(("", last - first, first) for first, last in self.chosen)
        return (("" if self.kind == "matrix" else f"{self.name}=", self.width),)


@dataclass(frozen=True)
class EncodingRules:
    """How columns that are not plain numbers become numbers; `one_hot` are columns whose values are to be found."""

    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    one_hot: tuple[str, ...] = ()
    multi_hot: Mapping[str, int] = field(default_factory=dict)
    unseen: Unseen = "error"
    missing: Missing = "error"

    def fields(self, file: str, columns: Sequence[str]) -> tuple[ColumnEncoding, ...]:
        """The fields of a table with these columns."""
        for name in (*self.categories, *self.one_hot, *self.multi_hot):
            if name not in columns:
                raise InputError(f"{file}: {name!r} is to be encoded, but is none of the columns that are read")
        return tuple(map(self._field, columns))

    def _field(self, name: str) -> ColumnEncoding:
        if name in self.multi_hot:
            return ColumnEncoding(name, "multi_hot", self.multi_hot[name], missing=self.missing)
        if name in self.one_hot or name in self.categories:
            values = self.categories.get(name, ())
            return ColumnEncoding(name, "one_hot", len(values), values, unseen=self.unseen, missing=self.missing)
        return ColumnEncoding(name, missing=self.missing, fill=0.0 if self.missing == "zero" else None)


@dataclass(frozen=True)
class TableEncoding:
    """How a source became columns, for more rows to become columns in the same way.

    `means`: of each field that is a number, in the rows that were there.
    """

    fields: tuple[ColumnEncoding, ...]
    means: tuple[float, ...]

    def again(self, treatment: EncodingRules) -> tuple[ColumnEncoding, ...]:
        """The same fields; what to do with values that are unseen or missing may be chosen anew."""
        means = iter(self.means)
        return tuple(_again(each, treatment, next(means) if each.kind == "number" else None) for each in self.fields)

    def to_json(self) -> dict[str, Any]:
        return {"fields": [asdict(each) for each in self.fields], "means": list(self.means)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "TableEncoding":
        return cls(fields_from(content["fields"]), tuple(content["means"]))


def _again(known: ColumnEncoding, treatment: EncodingRules, mean: float | None) -> ColumnEncoding:
    fill = {"error": None, "zero": 0.0, "mean": mean}[treatment.missing] if known.kind == "number" else None
    if known.kind == "matrix":
        return known
    return replace(known, unseen=treatment.unseen, missing=treatment.missing, fill=fill)


def fields_from(content: Sequence[Mapping[str, Any]]) -> tuple[ColumnEncoding, ...]:
    """Fields that `asdict` made into JSON."""
    return tuple(_field_from(each) for each in content)


def _field_from(content: Mapping[str, Any]) -> ColumnEncoding:
    chosen = tuple((first, last) for first, last in content.get("chosen", ()))
    return ColumnEncoding(**{**content, "values": tuple(content["values"]), "chosen": chosen})


def names_of(fields: Sequence[ColumnEncoding]) -> Sequence[str]:
    """The names of all columns."""
    parts = tuple(part for each in fields for part in each.parts)
    return Names(parts) if any(not isinstance(part, str) for part in parts) else tuple(str(part) for part in parts)


def of_kind(fields: Sequence[ColumnEncoding], *kinds: Kind) -> NDArray[np.bool_]:
    """Which columns come from fields of these kinds."""
    return np.repeat([each.kind in kinds for each in fields], [each.width for each in fields])
