"""Names of columns. There may be millions: numbered names are stored as ranges and made on demand."""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, overload

from veilmeans.schemas.errors import printable

MOST_LISTED = 5  # the largest number of names in a sentence
NameRange = str | tuple[str, int] | tuple[str, int, int]


@dataclass(frozen=True)
class Names(Sequence[str]):
    """Names as ranges: a name, (prefix, n) for prefix0 … prefix{n−1}, or (prefix, n, first) to start at first."""

    ranges: tuple[NameRange, ...]

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *accumulate(1 if isinstance(each, str) else each[1] for each in self.ranges)]

    def __len__(self) -> int:
        return self._starts[-1]

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...
    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        if isinstance(index, slice):
            return tuple(self._name(i) for i in range(*index.indices(len(self))))
        return self._name(range(len(self))[index])

    def __iter__(self) -> Iterator[str]:
        for each in self.ranges:
            yield from (each,) if isinstance(each, str) else (_numbered(each, i) for i in range(each[1]))

    def _name(self, index: int) -> str:
        number = bisect_right(self._starts, index) - 1
        found = self.ranges[number]
        return found if isinstance(found, str) else _numbered(found, index - self._starts[number])


def _numbered(names: tuple[str, int] | tuple[str, int, int], index: int) -> str:
    return f"{names[0]}{sum(names[2:]) + index}"


def numbered_names(count: int) -> Names:
    """The names "0", "1", … of so many columns."""
    return Names((("", count),))


def list_briefly(names: Sequence[str]) -> str:
    """List the first few names in a sentence."""
    return ", ".join(map(printable, names[:MOST_LISTED])) + (", …" if len(names) > MOST_LISTED else "")


def ranges_of(names: Sequence[str]) -> list[Any]:
    """Convert names to JSON; numbered names become one range."""
    if isinstance(names, Names):
        return [each if isinstance(each, str) else list(each) for each in names.ranges]
    return list(names)


def from_ranges(ranges: Sequence[Any]) -> Sequence[str]:
    """Read names from the JSON that `ranges_of` made."""
    if all(isinstance(each, str) for each in ranges):
        return tuple(ranges)
    return Names(tuple(each if isinstance(each, str) else tuple(each) for each in ranges))


def join_names(names: Iterable[str]) -> bytes:
    """Write names as one text, each on a line of its own; a line break within a name is escaped."""
    return "\n".join(name.replace("\\", "\\\\").replace("\n", "\\n") for name in names).encode()


def split_names(text: bytes) -> list[str]:
    """Read the names of a text that `join_names` made; any text is read as names, whoever made it."""
    lines = text.decode(errors="replace").split("\n")
    return [re.sub(r"\\(.)", lambda escape: escape[1].replace("n", "\n"), line) for line in lines]


def distinct_names(names: Iterable[str]) -> list[str]:
    """Append its position to a name that occurred before, so that every name occurs once."""
    taken: dict[str, None] = {}
    for position, name in enumerate(names):
        while name in taken:
            name = f"{name}_{position}"
        taken[name] = None
    return list(taken)
