"""The parties of a run, in their agreed order, and this party's place among them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Party:
    """This party among the M parties. Public: it holds names only."""

    index: int
    names: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.names[self.index]

    @property
    def count(self) -> int:
        """M, the number of parties."""
        return len(self.names)

    @property
    def first(self) -> bool:
        """True for the one party that adds public constants to its share."""
        return self.index == 0

    @property
    def others(self) -> tuple[int, ...]:
        return tuple(i for i in range(self.count) if i != self.index)
