"""Cost of the arithmetic without Beam and network: comparisons, F_min^k, products mod 2^64, the dealer.

All parties run in one process, round by round, and their work is counted together; a party expands its triples from its
seed as in a real run, and the corrections are in memory. Seconds are of one core (time.process_time), the least of a
few repetitions; loops that numba compiles are compiled, as they are in large jobs after a while.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib import import_module

import numpy as np
from scipy.sparse import csr_array, random_array

from benchmarks import prefix_compare
from benchmarks.figures import Figure, parser, publish
from veilmeans.crypto import bit_loops, bits, ring
from veilmeans.crypto import ring_matmul as products
from veilmeans.io.storage.number_seeds import derive_number_seed
from veilmeans.io.storage.triple_store import correction_name, store_address
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Array, Arrays
from veilmeans.schemas.party import Party
from veilmeans.transforms.offline.dealer import deal_corrections
from veilmeans.transforms.primitives.argmin import METHODS, Argmin, Method, argmin
from veilmeans.transforms.primitives.compare import Comparison, sign
from veilmeans.transforms.rounds.addressed_randomness import AddressedRandomness
from veilmeans.transforms.rounds.protocol import Inbox, Protocol, Stage
from veilmeans.transforms.rounds.trace import StageTrace, trace

PARTIES = 2
COUNT = 65_536
"""Comparisons in one batch."""
ROWS, COLUMNS, CLUSTERS = 1_000_000, 16, 5
SPARSE_ROWS, SPARSE_COLUMNS, DENSITY = 100_000, 1_000, 0.01
REPEATS = 7
STORE = "bench"


@dataclass
class MemoryStore:
    """A party's triple store in memory: the seed of its number, derived from its first one, and the corrections."""

    first_seed: bytes
    arrays: dict[str, Array] = field(default_factory=dict)
    made_by_ot: bool = False

    @cached_property
    def seed(self) -> bytes:
        return derive_number_seed(self.first_seed, 0)

    def at(self, place: Address) -> Address:
        return store_address(STORE, 0, place)

    def correction(self, place: Address, label: str) -> Array:
        return self.arrays[correction_name(place.stage, label)]

    def nbytes(self) -> int:
        return len(self.seed) + sum(array.nbytes for array in self.arrays.values())


def seconds(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """Processor seconds: the least of a few repetitions after one to warm up."""
    work()
    return min(_timed(work) for _ in range(repeats))


def _timed(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def address(stage: str) -> Address:
    return Address("bench", 0, stage, 0)


def traced(protocol: Protocol, shape: tuple[int, ...], name: str) -> list[StageTrace]:
    return trace(protocol, [{name: (shape, "uint64")}] * PARTIES)


def fill(stores: Sequence[MemoryStore], stages: Sequence[StageTrace]) -> None:
    """Deal the corrections of these stages, from shapes only."""
    needs = {stage.name: stage.needs for stage in stages}
    seeds = [store.first_seed for store in stores]
    for party, arrays in deal_corrections(seeds, STORE, 0, address(""), needs).items():
        stores[party].arrays = arrays


def new_stores() -> list[MemoryStore]:
    return [MemoryStore(os.urandom(32)) for _ in range(PARTIES)]


def step(stage: Stage, stores: Sequence[MemoryStore], states: Sequence[Arrays]) -> list[Arrays]:
    """Run one round of all parties: every send, then every receive."""
    parties = [Party(i, tuple("ab")) for i in range(PARTIES)]

    def randomness(party: Party) -> AddressedRandomness:
        store = stores[party.index]
        return AddressedRandomness(party.index, store.seed, store, address(stage.name))  # type: ignore[arg-type]

    sent = [stage.round.send(party, states[party.index], randomness(party)) for party in parties]
    inboxes = [Inbox(p, {i: sent[i].for_peer(p.index) for i in stage.round.senders(p)}) for p in parties]
    return [
        stage.round.receive(party, sent[party.index].state, inbox, randomness(party))
        for party, inbox in zip(parties, inboxes, strict=True)
    ]


def run(protocol: Protocol, stores: Sequence[MemoryStore], states: Sequence[Arrays]) -> list[Arrays]:
    """Run all rounds of all parties."""
    after = list(states)
    for stage in protocol.stages():
        after = step(stage, stores, after)
    return after


def uniform(*shape: int, seed: int = 0) -> ring.Ring:
    return np.random.default_rng(seed).integers(0, 2**64, shape, np.uint64)


def shared(values: ring.Ring, name: str) -> list[Arrays]:
    """States of two parties that share `values`."""
    mask = uniform(*values.shape, seed=1)
    return [{name: mask}, {name: values - mask}]


def comparisons(width: int, rate: float | None, ratio: float | None, most_bytes: float) -> list[Figure]:
    """Comparisons of `width` bits: number in a second, bytes, rounds, the dealer's work, and the one before beside."""
    protocol = sign(Comparison("x", "b", width), PARTIES)
    stages = traced(protocol, (COUNT,), "x")
    stores = new_stores()
    dealer = seconds(partial(fill, stores, stages), 3)
    values = ring.encode(np.random.default_rng(2).integers(-(2 ** (width - 1)), 2 ** (width - 1), COUNT))
    states = shared(values, "x")
    check_signs(run(protocol, stores, states), values, bits.unpack)
    took, before = alternating(partial(run, protocol, stores, states), prefix_comparison(width, values, states))
    sent = max(sum(stage.sent[i] for stage in stages) for i in range(PARTIES)) / COUNT
    name, million = f"CMP, {width} bits, {PARTIES} parties", 1e6 / COUNT
    return [
        _against(Figure.at_least, f"{name}: both parties' work", COUNT / took / 1e6, "million/s and core", rate),
        Figure(f"{name}: the one before", COUNT / before / 1e6, "million/s and core"),
        _against(Figure.at_least, f"{name}: quicker than the one before", before / took, "×", ratio),
        Figure.at_most(f"{name}: sent by a party", sent, "bytes each", most_bytes),
        Figure.at_most(f"{name}: rounds", len(protocol), "", 3),
        Figure(f"{name}: dealer", dealer * million, "s per million"),
        Figure(f"{name}: stores", sum(store.nbytes() for store in stores) * million / 1e6, "MB per million"),
    ]


def prefix_comparison(width: int, values: ring.Ring, states: Sequence[Arrays]) -> Callable[[], object]:
    """The comparison before masked evaluation, on the same values."""
    protocol, stores = prefix_compare.sign(prefix_compare.Comparison("x", "b", width)), new_stores()
    fill(stores, traced(protocol, (COUNT,), "x"))
    check_signs(run(protocol, stores, states), values, prefix_compare.unpack)
    return partial(run, protocol, stores, states)


def alternating(one: Callable[[], object], other: Callable[[], object]) -> tuple[float, float]:
    """Processor seconds of both, measured in turns, so that other programs disturb both alike."""
    times = [(_timed(one), _timed(other)) for _ in range(2 * REPEATS)]
    return min(each for each, _ in times), min(each for _, each in times)


def check_signs(states: Sequence[Arrays], values: ring.Ring, unpack: Callable[[Array, int], Array]) -> None:
    """Fail if the results are wrong."""
    signs = unpack(np.bitwise_xor(states[0]["b"], states[1]["b"]), values.size)
    if not np.array_equal(signs, ring.decode(values) < 0):
        raise ArithmeticError("the comparison gives wrong signs")


def _against(
    kind: Callable[[str, float, str, float], Figure], name: str, value: float, unit: str, target: float | None
) -> Figure:
    return Figure(name, value, unit) if target is None else kind(name, value, unit, target)


def assignment(method: Method) -> list[Figure]:
    """F_min^k of values of 32 bits."""
    rows = COUNT // 4
    protocol = argmin(Argmin(compare_bits=43, drop=11, method=method), CLUSTERS, PARTIES)
    stages, stores = traced(protocol, (CLUSTERS, rows), "d"), new_stores()
    fill(stores, stages)
    states = shared(uniform(CLUSTERS, rows, seed=3) >> np.uint64(23), "d")
    took = seconds(partial(run, protocol, stores, states))
    sent = sum(stage.sent[0] for stage in stages) / rows
    name = f"F_min^k, k = {CLUSTERS}, 32 bits, {method}"
    return [
        Figure(f"{name}: both parties' work", rows / took / 1e6, "million rows/s and core"),
        Figure(f"{name}: sent by a party", sent, "bytes per row"),
        Figure(f"{name}: stores", sum(store.nbytes() for store in stores) / rows, "bytes per row"),
        Figure(f"{name}: rounds", len(protocol), ""),
    ]


def dense(transposed: bool) -> list[Figure]:
    """X·Y or Xᵀ·Z against numpy's @."""
    matrix = uniform(ROWS, COLUMNS)
    left = matrix.T if transposed else matrix
    right = uniform(left.shape[1], CLUSTERS, seed=4)
    if not np.array_equal(products.matmul(left, right), left @ right):
        raise ArithmeticError("the product is wrong")
    ours, numpys = seconds(lambda: products.matmul(left, right), 3 * REPEATS), seconds(lambda: left @ right, 3)
    name = f"{left.shape[0]:,}×{left.shape[1]:,} · {right.shape[0]:,}×{CLUSTERS}"
    return [
        Figure(f"{name}: of the left matrix", matrix.nbytes / ours / 1e9, "GB/s"),
        Figure(f"{name}: ours", ours * 1e3, "ms"),
        Figure(f"{name}: numpy's @", numpys * 1e3, "ms"),
        Figure.at_least(f"{name}: quicker than numpy's @", numpys / ours, "×", 5),
    ]


def sparse() -> list[Figure]:
    """CSR products; the loop is scipy's own, so the difference to `left @ right` is what our checks cost."""
    pattern = random_array((SPARSE_ROWS, SPARSE_COLUMNS), density=DENSITY, format="csr", rng=np.random.default_rng(5))
    left = csr_array((uniform(pattern.nnz), pattern.indices, pattern.indptr), shape=pattern.shape)
    right, tall = uniform(SPARSE_COLUMNS, CLUSTERS), uniform(SPARSE_ROWS, CLUSTERS)
    ours = seconds(lambda: products.sparse_matmul(left, right))
    flipped = seconds(lambda: products.sparse_matmul_transposed(left, tall))
    scipys = seconds(lambda: left @ right)
    size = left.data.nbytes + left.indices.nbytes + left.indptr.nbytes
    name = f"sparse {SPARSE_ROWS:,}×{SPARSE_COLUMNS:,}, {DENSITY:.0%}, · {CLUSTERS} columns"
    return [
        Figure(f"{name}: of the left matrix", size / ours / 1e9, "GB/s"),
        Figure(f"{name}: ours", ours * 1e3, "ms"),
        Figure(f"{name}: ours, transposed", flipped * 1e3, "ms"),
        Figure(f"{name}: scipy's @", scipys * 1e3, "ms"),
    ]


def compile_loops() -> None:
    """Compile at once what a process compiles when it has worked enough for it to pay: large jobs are measured."""
    bit_loops.COMPILED_AFTER = products.COMPILED_AFTER = products.WIDE = 0
    import_module("numba")


def main() -> None:
    arguments = parser(__doc__).parse_args()
    compile_loops()
    figures = [*comparisons(64, 1.5, None, 12), *comparisons(32, None, 3, 8)]
    assignments = [figure for method in METHODS for figure in assignment(method)]
    publish([*figures, *assignments, *dense(False), *dense(True), *sparse()], arguments.json)


if __name__ == "__main__":
    main()
