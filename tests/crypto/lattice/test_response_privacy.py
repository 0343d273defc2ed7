"""What the owner receives is what a simulator without V makes: the hybrids of docs/offline.md, with real numbers.

The simulator has what the owner has (s, U, its share W) and a uniform c1; it sends C1 = round(c1) and
C0 = cut(⌊−c1·s + q·W/2^64⌉). Here it gets the real c1 and the real flood, and must then send the real message.
"""

import numpy as np
import pytest

from support.lattice_runs import (
    OWNER,
    PEER,
    PUBLIC,
    Product,
    centred,
    edges,
    integers,
    join_residues,
    multiply,
    negacyclic,
    residues,
    words,
)
from support.uniformity import LIMIT, chi_square
from veilmeans.crypto.lattice import sampling
from veilmeans.crypto.lattice.bit_packing import unpack
from veilmeans.crypto.lattice.compression import flood_and_cut, round_mask
from veilmeans.crypto.lattice.kernel import Words
from veilmeans.crypto.lattice.matrix_triple import hiding_polynomial, respond
from veilmeans.crypto.lattice.operand import mask, secret
from veilmeans.crypto.lattice.parameters import DEGREE, KEPT, MODULUS, PRIMES

both = pytest.mark.parametrize("transposed", [False, True], ids=["distance", "update"])
WIDTH = MODULUS >> 66
"""The width of what is cut off."""


def fraction(x: int, f: int) -> int:
    """h of `crypto.lattice.compression`, by Python's integers."""
    z = (x // PRIMES[3] + f) // PRIMES[2] % KEPT
    return z * ((1 << 234) // KEPT) >> 106


def cut(x: int, first: int, second: int) -> int:
    """cut(x) with the two random words of its flood."""
    return (fraction(x, first * PRIMES[2] >> 64) + (second >> 2)) % 2**128 >> 62


def scaled(word: int) -> int:
    """⌊q·word/2^64⌉."""
    return (word * MODULUS + 2**63) >> 64


def results(product: Product, j: int) -> list[int]:
    """c0 of column j as integers of 66 bits."""
    top = product.response["c0"]
    tail = unpack(product.response["c0.tail"], 2, top.size).reshape(top.shape)
    return [(int(a) << 2) + int(b) for a, b in zip(top[j], tail[j], strict=True)]


def whole_mask(product: Product, j: int) -> list[int]:
    """c1 of column j before it is rounded: Σ a·v + a_*·r + e', by Python's integers."""
    v = np.ascontiguousarray(product.v[:, j])
    if product.shape.transposed:
        turned = np.zeros(DEGREE, np.uint64)
        turned[0], turned[DEGREE - len(v) + 1 :] = v[0], -v[:0:-1]
        known = negacyclic(integers(mask(PUBLIC, 0)), turned.view(np.int64).tolist(), MODULUS)
    else:
        columns = [integers(mask(PUBLIC, c)) for c in range(product.shape.columns)]
        values = v.view(np.int64).tolist()
        known = [sum(a * b for a, b in zip(row, values, strict=True)) for row in zip(*columns, strict=True)]
    hidden = negacyclic(integers(mask(PUBLIC, product.shape.masks)), integers(hiding_polynomial(PEER, j)), MODULUS)
    error = join_residues(sampling.noise(PEER, f"error {j}"))
    return [sum(each) % MODULUS for each in zip(known, hidden, error, strict=True)]


@both
@pytest.mark.parametrize("draw", [words, edges])
def test_the_simulator_without_v_sends_the_same(transposed: bool, draw: type[words]) -> None:
    rows, columns = (50, 2) if transposed else (50, 3)
    u, v = draw(rows, columns, seed=1), draw(rows if transposed else columns, 1, seed=2)
    product = multiply(u, v, words(columns if transposed else rows, 1, seed=3), transposed)
    c1, sent, count = whole_mask(product, 0), results(product, 0), product.shape.results
    assert all(abs(C1 * MODULUS - (x << 80)) <= MODULUS * 1.001 / 2 for C1, x in zip(product.mask(0), c1, strict=True))
    flood = sampling.words(PEER, "flood 0", 2 * count).tolist()
    shares = product.owner_share[:, 0].tolist()
    for i in range(product.shape.secrets):
        phases = negacyclic(c1, integers(secret(OWNER, i)), MODULUS)
        for x, at in ((0, i),) if transposed else enumerate(range(count)):
            simulated = cut((scaled(shares[at]) - phases[x]) % MODULUS, flood[2 * at], flood[2 * at + 1])
            assert simulated == sent[at]


def test_the_cut_is_exact_at_every_boundary() -> None:
    """The second word puts h + g just below a multiple of 2^62, and on it: one unit of 2^-128 more or less shows.

    So this fails where R is added to the fraction, or where reciprocals are short.
    """
    generator = np.random.default_rng(5)
    numbers = [int.from_bytes(generator.bytes(27), "little") % MODULUS for _ in range(500)]
    numbers += [0, 1, MODULUS - 1, MODULUS - 2, PRIMES[3], PRIMES[3] * PRIMES[2], MODULUS - PRIMES[3] * PRIMES[2] - 1]
    masks, firsts = words(len(numbers), seed=1), words(len(numbers), seed=2)
    masks[:3], firsts[1:4] = edges(3), 2**64 - 1
    for step in (-1, 0, 1):
        random, expected = [], []
        for x, r, first in zip(numbers, masks.tolist(), firsts.tolist(), strict=True):
            total = (x + scaled(r)) % MODULUS
            g = (-fraction(total, first * PRIMES[2] >> 64) + step) % 2**62
            random += [first, g << 2]
            expected.append(cut(total, first, g << 2))
        top, tail = np.empty(len(numbers), np.uint64), np.empty(len(numbers), np.uint64)
        flood_and_cut(residues(numbers), masks, np.array(random, np.uint64), top, tail)
        assert [(int(a) << 2) + int(b) for a, b in zip(top, tail, strict=True)] == expected


def cut_many(x: int, random: Words) -> set[int]:
    """The values that one x is cut to."""
    count = random.size // 2
    top, tail = np.empty(count, np.uint64), np.empty(count, np.uint64)
    flood_and_cut(np.repeat(residues([x]), count, axis=1), np.zeros(count, np.uint64), random, top, tail)
    return set(zip(top.tolist(), tail.tolist(), strict=True))


@pytest.mark.parametrize("place", [0.02, 0.3, 0.5, 0.98])
def test_fresh_floods_cut_one_number_to_both_neighbours(place: float) -> None:
    x = 2**200 // WIDTH * WIDTH + int(place * WIDTH)
    values = cut_many(x, words(4000, seed=7))
    assert len(values) == 2
    assert len(cut_many(x, np.zeros(4000, np.uint64))) == 1


def test_a_response_is_flooded_anew_for_every_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """r, e' and R stay, the flood alone changes: every result takes two neighbouring values."""
    honest = sampling.words

    def only_the_flood_changes(seed: bytes, label: str, count: int) -> Words:
        return honest(seed if label.startswith("flood") else b"fixed", label, count)

    monkeypatch.setattr(sampling, "words", only_the_flood_changes)
    u, v, share = words(30, 1, seed=1), words(1, 1, seed=2), words(30, 1, seed=3)
    runs = np.array([results(multiply(u, v, share, False, peer=bytes([i])), 0) for i in range(40)], object)
    spread = runs.max(axis=0) - runs.min(axis=0)
    assert set(spread.tolist()) <= {0, 1}
    assert (spread == 1).sum() >= 20


@both
@pytest.mark.parametrize("value", [0, 1, 2**63, None])
def test_responses_are_uniform_whatever_v_is(transposed: bool, value: int | None) -> None:
    rows, columns, outputs = (40, 3, 8) if transposed else (DEGREE, 1, 8)
    v = words(rows if transposed else columns, outputs, seed=2)
    if value is not None:
        v[:] = value
    u, share = words(rows, columns, seed=1), words(columns if transposed else rows, outputs, seed=3)
    product = multiply(u, v, share, transposed)
    for name, array in product.response.items():
        if array.size >= DEGREE // 8:
            assert chi_square(array) < LIMIT, name


def test_the_owner_finds_no_trace_of_v_below_its_share() -> None:
    """c0 + c1·s minus the share, in units of the last bit that is sent: its distribution does not depend on V."""
    u, share, counts = words(DEGREE, 1, seed=1), words(DEGREE, 1, seed=3), []
    for v in (0, 2**63):
        product = multiply(u, np.full((1, 1), v, np.uint64), share, transposed=False, peer=b"%d" % v)
        phases = negacyclic(product.mask(0), integers(secret(OWNER, 0)), MODULUS)
        sums = zip(results(product, 0), phases, product.owner_share[:, 0].tolist(), strict=True)
        rest = [(c0 + (centred(phase) >> 14) - 4 * w + 2**65) % 2**66 - 2**65 for c0, phase, w in sums]
        counts.append(np.bincount(np.array(rest) + 3, minlength=6))
    first, second = counts
    assert len(first) == len(second) == 6  # −3 … 2: the owner rounds half a unit of its share, which is 2 of these
    assert ((first - second) ** 2 / np.maximum(first + second, 1)).sum() < 60  # χ²: probability below 10^-10


def test_without_the_error_a_uniform_c1_is_still_rounded_right() -> None:
    numbers = [0, 1, MODULUS - 1, MODULUS >> 80, (MODULUS >> 80) - 1, MODULUS >> 81, *range(2**213, 2**213 + 5)]
    top, tail = np.empty(len(numbers), np.uint64), np.empty(len(numbers), np.uint64)
    round_mask(residues(numbers), top, tail)
    for x, a, b in zip(numbers, top.tolist(), tail.tolist(), strict=True):
        distance = abs(((a << 16) + b) * MODULUS - (x << 80))
        assert min(distance, abs(distance - (MODULUS << 80))) <= MODULUS * 1.001 / 2


def test_respond_draws_r_e_and_flood_from_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each array of randomness has a label of its own: one label for two arrays would tie them together."""
    labels: list[tuple[bytes, str]] = []
    honest = sampling.words

    def recorded(seed: bytes, label: str, count: int) -> Words:
        labels.append((seed, label))
        return honest(seed, label, count)

    product = multiply(words(5, 2), words(2, 3), words(5, 3), transposed=False)
    monkeypatch.setattr(sampling, "words", recorded)
    respond(product.shape, product.operand, product.v, product.share, PEER, PUBLIC)
    own = [label for seed, label in labels if seed == PEER]
    assert sorted(own) == sorted(f"{what} {j}" for what in ("hiding", "error", "flood") for j in range(3))
    assert {seed for seed, _ in labels} == {PEER, PUBLIC}
