"""Scores and outliers of all rows, opened from the shares of all parties in memory."""

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from veilmeans.crypto import bits, ring
from veilmeans.crypto import fixed_point as fixed
from veilmeans.io.storage.checkpoints import Checkpoints, scores
from veilmeans.schemas.arrays import Array
from veilmeans.transforms.kmeans.steps import KMeansSteps


def row_results(kmeans: KMeansSteps, stores: Sequence[Checkpoints], done: int) -> dict[str, Any]:
    """The scores and outliers that the parties' shares together are, where the job finds them."""
    found: dict[str, list[Array]] = {}
    for row_shard in kmeans.layout.row_shards() if kmeans.measures else []:
        shares = [store.read_shard(scores(done), row_shard.number) for store in stores]
        if kmeans.scores:
            shown = fixed.decode(ring.total(each["shown"] for each in shares))
            found.setdefault("scores", []).append(shown[: row_shard.rows])
        if kmeans.outliers is not None:
            packed = reduce(np.bitwise_xor, (each["outlier"] for each in shares))
            found.setdefault("outliers", []).append(bits.unpack(packed, row_shard.rows).astype(bool))
    return {name: np.concatenate(parts) for name, parts in found.items()}
