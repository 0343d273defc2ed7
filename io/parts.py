"""What all parties have: the same rows, each its own columns, or the same columns, each its own rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from veilmeans.io.frames import Held
from veilmeans.schemas.errors import InputError


@dataclass(frozen=True)
class Parts:
    """Each party's part, in the parties' order."""

    held: Mapping[str, Held]
    vertical: bool

    def __post_init__(self) -> None:
        if len(self.held) < 2:
            raise InputError(f"X has parts of {', '.join(self.held) or 'nobody'}: two parties are the least")
        (first, known), *others = self.held.items()
        for name, each in others:
            if not self.vertical:
                check_columns(name, each.columns, known.columns, f"as {first} has them")
            elif each.rows != known.rows:
                raise InputError(f"{first} has {known.rows:,} rows and {name} {each.rows:,}: they must be the same")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.held)

    @property
    def first(self) -> Held:
        return next(iter(self.held.values()))

    @property
    def rows(self) -> int | dict[str, int]:
        """`kmeans.rows` of a configuration."""
        return self.first.rows if self.vertical else {name: each.rows for name, each in self.held.items()}

    @property
    def total_rows(self) -> int:
        return self.first.rows if self.vertical else sum(each.rows for each in self.held.values())

    @property
    def features(self) -> int | dict[str, int]:
        """`kmeans.features`: how many columns there are when text has become columns of 0 and 1."""
        return {name: self._width(name) for name in self.held} if self.vertical else self._width(self.names[0])

    @property
    def columns(self) -> list[str]:
        """The names of all columns, vertically with their party's."""
        if not self.vertical:
            return list(self.first.columns)
        return [f"{party}.{name}" for party, each in self.held.items() for name in each.columns]

    def encoding(self, party: str) -> dict[str, Any]:
        """How a party's text is encoded: vertically it finds the categories itself, else all agree on them."""
        found = self._categories(party)
        return {"one_hot": list(found)} if self.vertical else {"categories": {k: list(v) for k, v in found.items()}}

    def _categories(self, party: str) -> dict[str, tuple[str, ...]]:
        """The values of each column of text; horizontally those of everyone's."""
        own = self.held[party].categories
        if self.vertical:
            return own
        everyone = [each.categories for each in self.held.values()]
        return {name: tuple(sorted({value for each in everyone for value in each.get(name, ())})) for name in own}

    def _width(self, party: str) -> int:
        found = self._categories(party)
        return len(self.held[party].columns) - len(found) + sum(map(len, found.values()))


def split(whole: Held, names: Sequence[str], vertical: bool, widths: Sequence[int] | None = None) -> Parts:
    """What is of all, cut into the parties' parts: by columns (`widths`: how many each has) or by rows, evenly."""
    size = len(whole.columns) if vertical else whole.rows
    if size < len(names):
        what = f"n_features={size}" if vertical else f"n_samples={size}"
        raise InputError(f"X has {what}, and each of the {len(names)} parties needs one at least")
    least, more = divmod(size, len(names))
    ends = [0, *np.cumsum(widths or [least + (i < more) for i in range(len(names))]).tolist()]
    cut = whole.columns_from if vertical else whole.rows_from
    return Parts({name: cut(ends[i], ends[i + 1]) for i, name in enumerate(names)}, vertical)


def check_columns(party: str, found: Sequence[str], wanted: Sequence[str], why: str) -> None:
    """Refuse other columns, or others in their place."""
    if len(found) != len(wanted):
        raise InputError(f"{party} has {len(found):,} columns: {len(wanted):,} are needed, {why}")
    for number, (here, there) in enumerate(zip(found, wanted, strict=True)):
        if here != there:
            raise InputError(f"column {number:,} of {party} is {here!r}: it must be {there!r}, {why}")
