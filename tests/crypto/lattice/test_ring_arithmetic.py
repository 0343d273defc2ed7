"""The parts of the lattice products against Python's integers: residues, transforms, sampling, encodings, packing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.lattice_runs import EDGES, centred, edges, integers, join_residues, negacyclic, words
from support.uniformity import LIMIT, chi_square
from veilmeans.crypto.lattice import sampling
from veilmeans.crypto.lattice.bit_packing import pack, unpack
from veilmeans.crypto.lattice.encoding import pieces, reversed_polynomials, scaled, signed_scalars
from veilmeans.crypto.lattice.kernel import Words, count_ones, high_word, kernel
from veilmeans.crypto.lattice.modular import fold, minus, plus, product
from veilmeans.crypto.lattice.ntt import transform, transform_back
from veilmeans.crypto.lattice.parameters import DEGREE, KEPT, MODULUS, NOISE, PRIMES, distance_bits
from veilmeans.crypto.lattice.product_shape import ProductShape
from veilmeans.crypto.lattice.rlwe import add_combinations, add_constant_coefficient, add_product

primes = pytest.mark.parametrize("i", range(4))
without_deadline = settings(deadline=None)
"""The first example compiles."""
word = st.one_of(st.sampled_from(EDGES.tolist()), st.integers(0, 2**64 - 1))


@kernel
def both_instructions(a: np.uint64, b: np.uint64) -> tuple[np.uint64, np.uint64]:
    return high_word(a, b), count_ones(a)


def signed(residues: Words, i: int) -> list[int]:
    """Residues as integers around 0."""
    return [x - PRIMES[i] if x > PRIMES[i] // 2 else x for x in residues.tolist()]


def polynomials(count: int, seed: int = 0) -> Words:
    generator = np.random.default_rng(seed)
    return np.stack([generator.integers(0, p, (count, DEGREE), np.uint64) for p in PRIMES], axis=1)


def test_primes_are_those_of_the_parameters() -> None:
    for p in PRIMES:
        assert p % (2 * DEGREE) == 1
        assert all(pow(a, p - 1, p) == 1 for a in (2, 3, 5, 7, 11, 13))
    assert list(PRIMES) == sorted(PRIMES, reverse=True)
    assert MODULUS < 2**214
    assert 2**106 < KEPT < 2**107


@without_deadline
@given(word, word)
def test_instructions_on_words(a: int, b: int) -> None:
    assert both_instructions(np.uint64(a), np.uint64(b)) == (a * b >> 64, a.bit_count())


@primes
@without_deadline
@given(word, word)
def test_modular_arithmetic(i: int, a: int, b: int) -> None:
    p = PRIMES[i]
    x, y = np.uint64(a % p), np.uint64(b % p)
    assert fold(np.uint64(a), np.uint64(b), i) == ((a << 64) + b) % p
    assert product(x, y, i) == a % p * (b % p) % p
    assert plus(x, y, np.uint64(p)) == (a + b) % p
    assert minus(x, y, np.uint64(p)) == (a - b) % p


@primes
@without_deadline
@given(word)
def test_scaled_words_are_rounded_multiples(i: int, u: int) -> None:
    exact, halves = divmod(u * MODULUS, 2**64)
    assert scaled(np.uint64(u), i) in {(exact + (halves >= 2**63)) % PRIMES[i], (exact + (halves > 2**63)) % PRIMES[i]}


def test_transforms_multiply_polynomials() -> None:
    left, right = polynomials(2, seed=1)
    right[:, :8] = np.array(PRIMES, np.uint64)[:, None] - np.uint64(1)
    out = np.zeros((4, DEGREE), np.uint64)
    add_product(transform(left.copy()), transform(right.copy()), out)
    transform_back(out)
    for i, p in enumerate(PRIMES):
        assert out[i].tolist() == negacyclic(left[i].tolist(), right[i].tolist(), p)


def test_transforms_are_inverse_at_extremes() -> None:
    for value in (0, 1, -1):
        one = np.array([[value % p] * DEGREE for p in PRIMES], np.uint64)
        assert np.array_equal(transform_back(transform(one.copy())), one)


@pytest.mark.parametrize("bodies", [1, 64])
def test_combinations_of_the_largest_residues(bodies: int) -> None:
    largest = np.array([[p - 1] * DEGREE for p in PRIMES], np.uint64)
    some, scalars = np.stack([largest] * bodies), np.array([[[p - 1] * bodies] * 2 for p in PRIMES], np.uint64)
    out = np.stack([largest] * 2)
    add_combinations(some, scalars, out)
    assert np.array_equal(out, np.full_like(out, bodies - 1))


def test_combinations_and_constant_coefficients() -> None:
    some, out, constant = polynomials(5, seed=3), np.zeros((2, 4, DEGREE), np.uint64), np.ones(4, np.uint64)
    scalars = np.stack([np.random.default_rng(i).integers(0, p, (2, 5), np.uint64) for i, p in enumerate(PRIMES)])
    add_combinations(some, scalars, out)
    for i, p in enumerate(PRIMES):
        for j in range(2):
            exact = (some[:, i].astype(object) * scalars[i, j].astype(object)[:, None]).sum(axis=0) % p
            assert out[j, i].tolist() == exact.tolist()
    left, right = transform(some[0].copy()), transform(some[1].copy())
    add_constant_coefficient(left, right, constant)
    for i, p in enumerate(PRIMES):
        assert constant[i] == (negacyclic(some[0, i].tolist(), some[1, i].tolist(), p)[0] + 1) % p


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 63), st.integers(0, 200), st.integers(0, 2**32 - 1))
def test_packing_is_undone(width: int, count: int, seed: int) -> None:
    values = words(count, seed=seed) >> np.uint64(64 - width)
    packed = pack(values, width)
    assert packed.size == -(-count * width // 64)
    assert np.array_equal(unpack(packed, width, count), values)
    number = sum(int(x) << (width * i) for i, x in enumerate(values))
    assert int.from_bytes(packed.tobytes(), "little") == number


def test_pieces_and_reversed_polynomials_give_inner_products() -> None:
    u, v = edges(DEGREE + 3, 2, seed=1), edges(DEGREE + 3, 1, seed=2)
    parts, turned = pieces(u), reversed_polynomials(v)
    assert parts.shape == (2, 2, DEGREE)
    assert turned.shape == (1, 2, 4, DEGREE)
    total = 0
    for block in range(2):
        coefficients = [centred(x) for x in join_residues(turned[0, block])]
        assert max(map(abs, coefficients)) <= 2**63
        total += negacyclic(parts[block, 1].tolist(), coefficients, 2**64)[0]
    assert total % 2**64 == sum(int(a) * int(b) for a, b in zip(u[:, 1], v[:, 0], strict=True)) % 2**64


def test_scalars_are_signed() -> None:
    v = edges(5, 3, seed=3)
    out = signed_scalars(v)
    for i, p in enumerate(PRIMES):
        assert out[i].tolist() == [[x % p for x in row] for row in v.view(np.int64).T.tolist()]


def test_ternary_polynomials() -> None:
    polynomial = sampling.ternary(b"seed", "label")
    values = [signed(polynomial[i], i) for i in range(4)]
    assert values[0] == values[1] == values[2] == values[3]
    counts = [values[0].count(x) for x in (-1, 0, 1)]
    assert sum(counts) == DEGREE
    assert all(abs(count - DEGREE / 3) < 300 for count in counts)  # 7 standard deviations


def test_errors_have_the_deviation_of_the_standard() -> None:
    errors = [sampling.noise(b"seed", f"label {k}") for k in range(8)]
    values = np.array([signed(each[0], 0) for each in errors])
    assert all(signed(each[i], i) == values[k].tolist() for k, each in enumerate(errors) for i in range(4))
    assert np.abs(values).max() <= NOISE
    assert 3.19 < values.std() < 3.30
    assert abs(values.mean()) < 0.1


def test_masks_are_uniform_mod_q() -> None:
    masks = np.stack([sampling.uniform(b"seed", f"label {k}") for k in range(8)])
    for i, p in enumerate(PRIMES):
        assert (masks[:, i] < p).all()
        assert chi_square(((masks[:, i].astype(object) << 64) // p).astype(np.uint64)) < LIMIT


def test_integers_of_a_transformed_polynomial() -> None:
    one = np.zeros((4, DEGREE), np.uint64)
    one[:, 3] = 5
    assert integers(transform(one))[:5] == [0, 0, 0, 5, 0]


@pytest.mark.parametrize(
    ("terms", "coefficients", "bits"), [(1, 1, -80.5), (32, 1, -75.5), (1, 10**10, -47.3), (32, 10**10, -42.3)]
)
def test_the_distance_is_that_of_the_page(terms: int, coefficients: int, bits: float) -> None:
    assert bits - 0.2 < distance_bits(terms, coefficients) <= bits


def test_sizes_of_the_pages_examples() -> None:
    small, large = (10**4, 1), (10**5, 32)
    assert [ProductShape(*small, 5, t).operand_bytes for t in (False, True)] == [884_736, 663_552]
    assert [ProductShape(*large, 5, t).operand_bytes for t in (False, True)] == [94_887_936, 99_090_432]
    assert [ProductShape(*small, 5, t).response_bytes for t in (False, True)] == [822_104, 409_648]
