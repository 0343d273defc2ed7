"""The reveal policy of a run: which parties learn which results."""

from dataclasses import dataclass

from veilmeans.schemas.arrays import Arrays
from veilmeans.schemas.layout import Layout
from veilmeans.schemas.party import Party


@dataclass(frozen=True)
class RevealPolicy:
    """The parties that learn each kind of result, by their index."""

    layout: Layout
    assignments: frozenset[int] = frozenset()
    centroids: frozenset[int] = frozenset()
    all_columns: bool = False
    inertia: frozenset[int] = frozenset()
    scores: frozenset[int] = frozenset()
    outliers: frozenset[int] = frozenset()
    explanations: frozenset[int] = frozenset()
    profiles: frozenset[int] = frozenset()
    all_contributions: bool = False
    name: str = ""
    """Part of the stages' names: openings by different policies have no address in common."""

    def columns(self, party: int) -> slice:
        """The columns whose centroids `party` may see."""
        return slice(0, self.layout.total_features) if self.all_columns else self.layout.own_columns(party)

    def opens_scale(self, party: int) -> bool:
        """True if `party` needs the others' scales to read what it gets."""
        return self.layout.vertical and self.all_columns and party in self.centroids

    @property
    def opens_whole_scores(self) -> bool:
        """True if explanations have a number for the columns of the others; horizontally a row has one owner."""
        return self.layout.vertical and self.all_contributions


def may_see(named: frozenset[int], party: Party, state: Arrays, index: int) -> bool:
    """True if a party of those named learns results of this shard's rows; "owner" is M where all own them."""
    return index in named and int(state["owner"][0]) in (index, party.count)
