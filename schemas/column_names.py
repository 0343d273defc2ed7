"""Names of columns, of which there may be a million: those that are numbered are made when they are asked for."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, overload

SHOWN = 5
"""Names in a sentence, at most."""
NameRange = str | tuple[str, int] | tuple[str, int, int]


@dataclass(frozen=True)
class Names(Sequence[str]):
    """Parts in order: a name, or (prefix, n) for prefix0 … prefix{n−1}, or (prefix, n, first) to begin elsewhere."""

    parts: tuple[NameRange, ...]

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *accumulate(1 if isinstance(part, str) else part[1] for part in self.parts)]

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
        for part in self.parts:
            yield from (part,) if isinstance(part, str) else (_numbered(part, i) for i in range(part[1]))

    def _name(self, index: int) -> str:
        number = bisect_right(self._starts, index) - 1
        part = self.parts[number]
        return part if isinstance(part, str) else _numbered(part, index - self._starts[number])


def _numbered(part: tuple[str, int] | tuple[str, int, int], index: int) -> str:
    return f"{part[0]}{sum(part[2:]) + index}"


def numbered(count: int) -> Names:
    """ "0", "1", …"""
    return Names((("", count),))


def brief(names: Sequence[str]) -> str:
    """The first few names."""
    return ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")


def ranges_of(names: Sequence[str]) -> list[Any]:
    """The names as JSON, numbered ones in one part."""
    if isinstance(names, Names):
        return [part if isinstance(part, str) else list(part) for part in names.parts]
    return list(names)


def from_ranges(parts: Sequence[Any]) -> Sequence[str]:
    """What `ranges_of` made."""
    if all(isinstance(part, str) for part in parts):
        return tuple(parts)
    return Names(tuple(part if isinstance(part, str) else tuple(part) for part in parts))
