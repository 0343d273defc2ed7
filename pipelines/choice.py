"""Which engine makes each owner's cross products: the choice of `auto`, and the numbers behind it.

The masked matrix that beaver's products need crosses once and serves both, so all four pairs of engines are compared.
Where a shard of it is too large for a message, beaver is not chosen.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from veilmeans.pipelines.costs import Costs, Estimates, Owner, estimate
from veilmeans.pipelines.units import short

ENGINES = ("beaver", "he")
LARGEST_SHARD = 250_000_000
"""Bytes of a shard of a dense matrix: it is one message, and must fit in one (exchange.max_message_mb)."""


@dataclass(frozen=True)
class Choice:
    """The engine of each of an owner's products. `refused`: why beaver is out of the question, if it is."""

    distance: str
    update: str
    estimates: Estimates
    refused: str | None = None

    @property
    def seconds(self) -> float:
        """Of an iteration."""
        return _seconds(self.estimates, self.distance, self.update)

    @property
    def sends_operand(self) -> bool:
        """Whether the masked matrix crosses."""
        return "beaver" in (self.distance, self.update)


def choose(
    owner: Owner,
    k: int,
    parties: int,
    iterations: int,
    costs: Costs,
    rows_per_shard: int = 65_536,
    allowed: Sequence[Sequence[str]] = (ENGINES, ENGINES),
    largest_shard: int = LARGEST_SHARD,
) -> Choice:
    """The two engines that take the least time together; beaver where it makes no difference.

    `allowed`: those that may be chosen for the distance and for the update; one that is asked for is never refused.
    """
    estimates = estimate(owner, k, parties, iterations, costs, rows_per_shard)
    size, refused = min(owner.rows, rows_per_shard) * owner.columns * 8, None
    if size > largest_shard:
        refused = f"a shard has {short(size / 1e6)} MB, more than {short(largest_shard / 1e6)}: lower rows_per_shard"
        allowed = [["he"] if "he" in engines else engines for engines in allowed]
    distance, update = min(product(*allowed), key=lambda pair: _seconds(estimates, *pair))
    return Choice(distance, update, estimates, refused)


def _seconds(estimates: Estimates, distance: str, update: str) -> float:
    operand = estimates["operand"]["beaver"].seconds if "beaver" in (distance, update) else 0.0
    return estimates["distance"][distance].seconds + estimates["update"][update].seconds + operand
