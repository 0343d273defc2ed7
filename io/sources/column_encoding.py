"""The encoding of a source's columns, called fields: each becomes one column of numbers, or many."""

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
HOT: tuple[Kind, ...] = ("one_hot", "multi_hot")  # kinds whose columns are 0 or 1, sparse, and never scaled


@dataclass(frozen=True)
class ColumnEncoding:
    """A field of the source, and the `width` columns that it becomes.

    number      the value as it is; a missing one is `fill`, or NaN while `fill` is not known
    matrix      the columns of a sparse matrix, whose zeros stay zeros; svmlight indices count from `base`. If only some
                columns are used, `chosen` has the first and one past the last of each range of them
    one_hot     a column for each of `values`, which is 1 where the field has that value
    multi_hot   `width` columns, which are 1 where their number is in the field's list
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
    def name_ranges(self) -> tuple[NameRange, ...]:
        """The names of the columns, in the form of `Names`."""
        if self.kind == "one_hot":
            return tuple(f"{self.name}={value}".replace("\n", " ") for value in self.values)
        if self.kind == "number":
            return (self.name,)
        if self.chosen:
            return tuple(("", last - first, first) for first, last in self.chosen)
        return (("" if self.kind == "matrix" else f"{self.name}=", self.width),)


Fields = tuple[ColumnEncoding, ...]


@dataclass(frozen=True)
class EncodingRules:
    """The configured encoding of fields that are not plain numbers.

    `categories` declares the values of a field; those of a field in `one_hot` are collected from the data.
    """

    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    one_hot: tuple[str, ...] = ()
    multi_hot: Mapping[str, int] = field(default_factory=dict)
    unseen: Unseen = "error"
    missing: Missing = "error"

    def fields(self, file: str, columns: Sequence[str]) -> Fields:
        """Return the encoding of each column of a table."""
        for name in (*self.categories, *self.one_hot, *self.multi_hot):
            if name not in columns:
                raise InputError(f"{file}: {name!r} is to be encoded, but is none of the columns that are read")
        return tuple(map(self._encoding, columns))

    def _encoding(self, name: str) -> ColumnEncoding:
        if name in self.multi_hot:
            return ColumnEncoding(name, "multi_hot", self.multi_hot[name], missing=self.missing)
        if name in self.one_hot or name in self.categories:
            values = self.categories.get(name, ())
            return ColumnEncoding(name, "one_hot", len(values), values, unseen=self.unseen, missing=self.missing)
        return ColumnEncoding(name, missing=self.missing, fill=0.0 if self.missing == "zero" else None)


@dataclass(frozen=True)
class TableEncoding:
    """The encoding of a source that was read, by which new rows are encoded in the same way.

    `means`: the mean of each field that is a number, in the rows that were read.
    """

    fields: Fields
    means: tuple[float, ...]

    def for_new_rows(self, rules: EncodingRules) -> Fields:
        """Return the same fields, with the rules for unseen and missing values taken from `rules`."""
        means = iter(self.means)
        return tuple(_with_rules(each, rules, next(means) if each.kind == "number" else None) for each in self.fields)

    def to_json(self) -> dict[str, Any]:
        """Return the encoding as JSON."""
        return {"fields": [asdict(each) for each in self.fields], "means": list(self.means)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "TableEncoding":
        """Rebuild an encoding from `to_json`."""
        return cls(encodings_from_json(content["fields"]), tuple(content["means"]))


def _with_rules(known: ColumnEncoding, rules: EncodingRules, mean: float | None) -> ColumnEncoding:
    fill = {"error": None, "zero": 0.0, "mean": mean}[rules.missing] if known.kind == "number" else None
    if known.kind == "matrix":
        return known
    return replace(known, unseen=rules.unseen, missing=rules.missing, fill=fill)


def encodings_from_json(content: Sequence[Mapping[str, Any]]) -> Fields:
    """Rebuild encodings from the JSON form of `asdict`."""
    return tuple(_encoding_from_json(each) for each in content)


def _encoding_from_json(content: Mapping[str, Any]) -> ColumnEncoding:
    chosen = tuple((first, last) for first, last in content.get("chosen", ()))
    return ColumnEncoding(**{**content, "values": tuple(content["values"]), "chosen": chosen})


def encoded_names(fields: Sequence[ColumnEncoding]) -> Sequence[str]:
    """Return the names of all encoded columns."""
    ranges = tuple(each for field in fields for each in field.name_ranges)
    return Names(ranges) if any(not isinstance(each, str) for each in ranges) else tuple(str(each) for each in ranges)


def columns_of_kind(fields: Sequence[ColumnEncoding], *kinds: Kind) -> NDArray[np.bool_]:
    """Mark the encoded columns that come from fields of these kinds."""
    return np.repeat([each.kind in kinds for each in fields], [each.width for each in fields])
