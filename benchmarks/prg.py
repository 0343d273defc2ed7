"""Speed of seeded randomness: AES-CTR by address, against os.urandom in the same run."""

import os
import time

import numpy as np

from benchmarks.figures import Figure, parser, publish
from veilmeans.crypto import prg
from veilmeans.schemas.address import Address

VALUES = 16_384 * 5
REPEATS = 400


def gigabytes_per_second(values: int) -> float:
    """Measure the expansion of one address to `values` uint64."""
    addresses = [Address("bench", 0, "stage", shard) for shard in range(REPEATS)]
    prg.uniform(bytes(32), addresses[0], "warm", (values,))
    start = time.perf_counter()
    for address in addresses:
        prg.uniform(bytes(32), address, "mask", (values,))
    return REPEATS * values * 8 / (time.perf_counter() - start) / 1e9


def urandom_gigabytes_per_second(values: int) -> float:
    start = time.perf_counter()
    for _ in range(REPEATS // 10):
        np.frombuffer(os.urandom(values * 8), np.uint64)
    return REPEATS // 10 * values * 8 / (time.perf_counter() - start) / 1e9


def main() -> None:
    arguments = parser(__doc__).parse_args()
    ours, baseline = gigabytes_per_second(VALUES), urandom_gigabytes_per_second(VALUES)
    figures = [
        Figure.at_least(f"PRG by address, {VALUES:,} values each", ours, "GB/s", 1.0),
        Figure("os.urandom, the same", baseline, "GB/s"),
        Figure("ratio", ours / baseline, "×"),
    ]
    publish(figures, arguments.json)


if __name__ == "__main__":
    main()
