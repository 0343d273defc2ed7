"""A chain of rounds over shards, for tests of executors."""

import numpy as np

from support.parties import make_shares
from veilmeans.crypto import ring
from veilmeans.schemas.arrays import Arrays

ROUNDS, SHARDS = 12, 64


def make_shards(parties: int, shards: int, rows: int) -> tuple[list[dict[int, Arrays]], dict[int, ring.Ring]]:
    """Shares of random x and y for each party, and x·y^ROUNDS; the last shard has one row."""
    rng = np.random.default_rng(1)
    shares: list[dict[int, Arrays]] = [{} for _ in range(parties)]
    expected = {}
    for shard in range(shards):
        size = (1 if shard == shards - 1 else rows, 2)
        x, y = (rng.integers(0, 2**64, size, np.uint64) for _ in "xy")
        of_both = zip(make_shares(x, parties, shard), make_shares(y, parties, shard + 1000), strict=True)
        for party, (xs, ys) in enumerate(of_both):
            shares[party][shard] = {"x": xs, "y": ys}
        for _ in range(ROUNDS):
            x = x * y
        expected[shard] = x
    return shares, expected
