"""Matrix triples by lattices: CPU time of one core and bytes, for the distances and the updates of one shard.

The arithmetic alone, without Beam, Arrow and network. A product is checked before it is measured.
"""

import time
from collections.abc import Callable
from functools import partial

import numpy as np

from benchmarks.figures import Figure, parser, publish
from veilmeans.crypto.lattice.kernel import Words
from veilmeans.crypto.lattice.matrix_triple import open_response, respond
from veilmeans.crypto.lattice.ntt import transform, transform_back
from veilmeans.crypto.lattice.operand import encrypt_operand
from veilmeans.crypto.lattice.parameters import DEGREE, PRIMES, distance_bits
from veilmeans.crypto.lattice.product_shape import ProductShape
from veilmeans.crypto.ring_matmul import matmul

JOBS = [(10_000, 1, 5), (100_000, 32, 5)]
"""n, d, k."""
MOST_MB = {(10_000, False): 0.83, (10_000, True): 0.42, (100_000, False): 4.6, (100_000, True): 0.42}
"""(n, update) -> of one response."""
OWNER, PEER, PUBLIC = b"owner", b"peer", b"public"


def words(*shape: int) -> Words:
    return np.random.default_rng(1).integers(0, 2**64, shape, np.uint64)


def seconds(work: Callable[[], object], repeats: int) -> float:
    """Processor seconds: the least of a few repetitions."""
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return best


def compilation() -> list[Figure]:
    """The first product of a process: compiled, or read from the cache."""
    start = time.process_time()
    for transposed in (False, True):
        _product(10, 1, 2, transposed)
    return [Figure("first products of a process (compiled or from the cache)", time.process_time() - start, "s")]


def _product(rows: int, columns: int, outputs: int, transposed: bool) -> None:
    shape = ProductShape(rows, columns, outputs, transposed)
    u, v, share = words(rows, columns), words(shape.terms, outputs), words(shape.results, outputs)
    operand = encrypt_operand(shape, u, OWNER, PUBLIC)
    opened = open_response(shape, respond(shape, operand, v, share, PEER, PUBLIC), OWNER)
    if not np.array_equal(opened + share, matmul(u.T if transposed else u, v)):
        raise ArithmeticError("the product is wrong")


def transforms() -> list[Figure]:
    polynomial = np.zeros((len(PRIMES), DEGREE), np.uint64)
    forward, backward = (seconds(partial(each, polynomial), 200) for each in (transform, transform_back))
    return [
        Figure("transform of one residue", forward / len(PRIMES) * 1e6, "µs"),
        Figure("inverse transform of one residue", backward / len(PRIMES) * 1e6, "µs"),
    ]


def product(rows: int, columns: int, outputs: int, transposed: bool) -> list[Figure]:
    """One orientation: the operand once, a response and its opening per iteration."""
    _product(rows, columns, outputs, transposed)
    shape, repeats = ProductShape(rows, columns, outputs, transposed), 7 if columns == 1 else 3
    u, v, share = words(rows, columns), words(shape.terms, outputs), words(shape.results, outputs)
    encrypting = seconds(lambda: encrypt_operand(shape, u, OWNER, PUBLIC), 1)
    operand = encrypt_operand(shape, u, OWNER, PUBLIC)
    responding = seconds(lambda: respond(shape, operand, v, share, PEER, PUBLIC), repeats)
    response = respond(shape, operand, v, share, PEER, PUBLIC)
    opening = seconds(lambda: open_response(shape, response, OWNER), repeats)
    name = f"n={rows:,} d={columns} k={outputs}, {'update' if transposed else 'distance'}"
    most = MOST_MB[rows, transposed]
    return [
        Figure(f"{name}: Enc(U), once", shape.operand_bytes / 1e6, "MB"),
        Figure(f"{name}: encrypt U, once", encrypting * 1e3, "ms"),
        Figure.at_most(f"{name}: response", shape.response_bytes / 1e6, "MB", most),
        Figure(f"{name}: respond", responding * 1e3, "ms"),
        Figure(f"{name}: open", opening * 1e3, "ms"),
        Figure(f"{name}: log2 of the distance, all coefficients", distance_bits(shape.terms, share.size), ""),
    ]


def main() -> None:
    arguments = parser(__doc__).parse_args()
    figures = [*compilation(), *transforms()]
    for job in JOBS:
        figures += [*product(*job, False), *product(*job, True)]
    publish(figures, arguments.json)


if __name__ == "__main__":
    main()
