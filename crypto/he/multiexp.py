"""Products of powers of residues, the exponents in a sparse matrix: only its nonzeros are touched.

  row_products      Π_c b_c^x_rc for each row r       tables of the powers of each b_c, or Straus where they do not pay
  column_products   Π_r b_r^x_rc for each column c    Pippenger's buckets

Exponents are signed. The negative ones make a second product, which is inverted; all inversions are done together with
Montgomery's trick (one inversion, and three multiplications each). An exponent ±1 costs one multiplication.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import islice, pairwise
from typing import Any, NamedTuple

import gmpy2
import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

Integers = NDArray[np.int64]
ROWS_PER_CHUNK = 1 << 12
"""Rows whose factors are listed at the same time."""
_MAX_WINDOW = 16
_OBJECT_BYTES = 64  # bytes of a residue in a list beyond its digits
_ONE = mpz(1)


class PowerTables:
    """Tables of powers of every base, for exponents of `bits` bits.

    Entry (c·digits + j)·2^w + d of `factors` is bases[c]^(d·2^(w·j)), for digits d of w = `window` bits. A column's
    table is computed when the column first occurs. Threads may share the tables: two that compute the same one write
    the same values.
    """

    def __init__(self, bases: Sequence[mpz], modulus: mpz, bits: int, window: int | None) -> None:
        self.bases, self.modulus, self.bits = list(bases), modulus, bits
        self.window = min(window, bits) if window and bits > 1 else None
        self.digits = -(-bits // self.window) if self.window else 0
        self.factors: list[mpz] = [None] * (len(self.bases) * self.digits << (self.window or 0))
        self._computed = np.zeros(len(self.bases), np.bool_)

    def compute(self, columns: Integers) -> None:
        """Compute the tables of these columns that were not computed before."""
        for column in self.missing(columns):
            self.store([column], self.powers([column]))

    def missing(self, columns: Integers) -> list[int]:
        """List those of the columns whose tables were not computed before, ascending; none if there are no tables."""
        needed = np.zeros(len(self.bases), np.bool_)
        needed[columns] = self.window is not None
        return np.flatnonzero(needed & ~self._computed).tolist()

    @property
    def digit_sizes(self) -> list[int]:
        """The number of powers for each digit of an exponent; the last digit may have fewer bits."""
        window = self.window or 0
        return [1 << min(window, self.bits - digit * window) for digit in range(self.digits)]

    def powers(self, columns: Sequence[int]) -> list[mpz]:
        """Compute the powers of these columns, digit by digit."""
        computed: list[mpz] = []
        for column in columns:
            base = self.bases[column]
            for size in self.digit_sizes:
                computed += _powers(base, size, self.modulus)
                base = computed[-1] * base % self.modulus
        return computed

    def store(self, columns: Sequence[int], powers: Sequence[mpz]) -> None:
        """Put what `powers` has computed into the tables."""
        begin = 0
        for column in columns:
            for digit, size in enumerate(self.digit_sizes):
                start = column * self.digits + digit << (self.window or 0)
                self.factors[start : start + size] = powers[begin : begin + size]
                begin += size
            self._computed[column] = True


def choose_window(columns: int, nonzeros: int, bits: int, memory: int, size: int = 256) -> int | None:
    """Choose the width of digits with which tables of all columns take the fewest multiplications.

    The tables stay within `memory` bytes; a residue has `size` bytes. None: Straus takes fewer multiplications.
    """
    fewest, best = nonzeros * _straus_cost(bits, _straus_window(bits)), None
    for window in range(1, min(bits, _MAX_WINDOW) + 1):
        digits = -(-bits // window)
        entries = columns * digits << window
        if entries + nonzeros * digits < fewest and entries * (size + _OBJECT_BYTES) <= memory:
            fewest, best = entries + nonzeros * digits, window
    return best


def row_multiplications(columns: int, nonzeros: float, rows: float, bits: int, memory: int, size: int = 256) -> float:
    """Estimate the multiplications of `row_products`, tables included; `nonzeros` are those of all `rows` together."""
    if bits == 1:
        return nonzeros
    fewest = nonzeros * _straus_cost(bits, _straus_window(bits)) + min(rows, nonzeros) * bits
    for window in range(1, min(bits, _MAX_WINDOW) + 1):
        digits = -(-bits // window)
        if (columns * digits << window) * (size + _OBJECT_BYTES) <= memory:
            fewest = min(fewest, (min(columns, nonzeros) * (1 << window) + nonzeros) * digits)
    return fewest


def column_multiplications(columns: int, nonzeros: float, bits: int) -> float:
    """Estimate the multiplications of `column_products` for nonzeros that are evenly distributed over the columns."""
    if bits == 1 or not nonzeros:
        return nonzeros
    filled = min(float(columns), nonzeros)
    costs = (_bucket_cost(nonzeros / filled, bits, window) for window in range(1, _MAX_WINDOW))
    return filled * min(costs)


def row_products(matrix: Any, tables: PowerTables, rows_per_chunk: int = ROWS_PER_CHUNK) -> list[mpz]:
    """Π_c bases[c]^x_rc for each row r of a csr matrix; 1 for an empty row."""
    if matrix.shape[1] != len(tables.bases):
        raise ValueError(f"the matrix has {matrix.shape[1]} columns, and there are {len(tables.bases)} bases")
    products: list[mpz] = []
    for start in range(0, matrix.shape[0], rows_per_chunk):
        chunk = matrix[start : start + rows_per_chunk]
        positive, negative = _split_by_sign(chunk, tables.bits)
        products += _divide(_group_products(positive, tables), _group_products(negative, tables), tables.modulus)
    return products


def column_products(matrix: Any, rows: Sequence[mpz], modulus: mpz, bits: int) -> tuple[Integers, list[mpz]]:
    """Find the columns of a csr matrix that have nonzeros, ascending, and Π_r rows[r]^x_rc for each."""
    if matrix.shape[0] != len(rows):
        raise ValueError(f"the matrix has {matrix.shape[0]} rows, and there are {len(rows)} bases")
    positive, negative = _split_by_sign(matrix.tocsc(), bits)
    columns = np.flatnonzero(positive.sizes + negative.sizes)
    products, divisors = (
        _power_products(_pippenger, powers.select(columns), rows, modulus) for powers in (positive, negative)
    )
    return columns, _divide(products, divisors, modulus)


class _Powers(NamedTuple):
    """Groups of powers to multiply: Π bases[keys[j]]^exponents[j], starts[i] ≤ j < starts[i + 1]; exponents > 0."""

    starts: Integers
    keys: Integers
    exponents: Integers

    @property
    def sizes(self) -> Integers:
        return np.diff(self.starts)

    def select(self, groups: Integers) -> "_Powers":
        """Keep these groups; all others must be empty."""
        return self._replace(starts=np.append(self.starts[groups], self.starts[-1]))


def _split_by_sign(matrix: Any, bits: int) -> tuple[_Powers, _Powers]:
    """Split into the powers with positive exponents, and those with negative ones, negated.

    A group is a row of a csr matrix, or a column of a csc matrix.
    """
    exponents = np.asarray(matrix.data, np.int64)
    limit = 1 << min(bits, 63)
    if len(exponents) and not -limit < int(exponents.min()) <= int(exponents.max()) < limit:
        raise ValueError(f"an exponent has more than {bits} bits")
    keys = np.asarray(matrix.indices, np.int64)

    def select(chosen: NDArray[np.bool_]) -> _Powers:
        count_before = np.concatenate(([0], np.cumsum(chosen)))
        return _Powers(count_before[matrix.indptr], keys[chosen], np.abs(exponents[chosen]))

    return select(exponents > 0), select(exponents < 0)


def _group_products(powers: _Powers, tables: PowerTables) -> list[mpz]:
    if tables.bits == 1:
        return _multiply_groups(tables.bases, powers.keys, powers.sizes, tables.modulus)
    if tables.window is None:
        return _power_products(_straus, powers, tables.bases, tables.modulus)
    tables.compute(powers.keys)
    places = np.arange(tables.digits)
    digits = powers.exponents[:, None] >> (tables.window * places) & ((1 << tables.window) - 1)
    entries = ((powers.keys[:, None] * tables.digits + places) << tables.window) + digits
    nonzero = digits != 0
    count_before = np.concatenate(([0], np.cumsum(nonzero.sum(axis=1))))
    sizes = np.diff(count_before[powers.starts])
    return _multiply_groups(tables.factors, entries[nonzero], sizes, tables.modulus)


def _multiply_groups(factors: list[mpz], keys: Integers, sizes: Integers, modulus: mpz) -> list[mpz]:
    """Multiply factors[key] over each group of keys."""
    remaining = iter([factors[key] for key in keys.tolist()])
    return [_product(islice(remaining, size), modulus) for size in sizes.tolist()]


def _product(factors: Iterable[mpz], modulus: mpz) -> mpz:
    product = _ONE
    for factor in factors:
        product = product * factor % modulus
    return product


_Method = Callable[[Sequence[mpz], Sequence[int], mpz], mpz]
"""(bases, exponents, modulus) -> Π bases[i]^exponents[i]."""


def _power_products(method: _Method, powers: _Powers, bases: Sequence[mpz], modulus: mpz) -> list[mpz]:
    products = []
    for start, end in pairwise(powers.starts.tolist()):
        factors = [bases[key] for key in powers.keys[start:end].tolist()]
        products.append(method(factors, powers.exponents[start:end].tolist(), modulus))
    return products


def _straus(bases: Sequence[mpz], exponents: Sequence[int], modulus: mpz) -> mpz:
    """Π bases[i]^exponents[i]: all digits of one place, then `window` squarings for all of them together."""
    width = max(exponents, default=0).bit_length()
    if width <= 1:
        return _product(bases, modulus)
    window = _straus_window(width)
    mask, result = (1 << window) - 1, _ONE
    tables = [_powers(base, 1 << window, modulus) for base in bases]
    for shift in range((width - 1) // window * window, -1, -window):
        for _ in range(window):
            result = result * result % modulus
        for powers, exponent in zip(tables, exponents, strict=True):
            digit = exponent >> shift & mask
            if digit:
                result = result * powers[digit] % modulus
    return result


@lru_cache
def _straus_window(width: int) -> int:
    return min(range(1, _MAX_WINDOW), key=lambda window: _straus_cost(width, window))


def _straus_cost(width: int, window: int) -> float:
    """Estimate the multiplications for one factor: its table, and its nonzero digits. Squarings are per group."""
    return (1 << window) - 2 + -(-width // window) * (1 - 0.5**window)


def _pippenger(bases: Sequence[mpz], exponents: Sequence[int], modulus: mpz) -> mpz:
    """Π bases[i]^exponents[i]: at each place, the bases with the same digit are multiplied into one bucket."""
    width = max(exponents, default=0).bit_length()
    if width <= 1:
        return _product(bases, modulus)
    window = _bucket_window(len(bases), width)
    mask, result = (1 << window) - 1, _ONE
    for shift in range((width - 1) // window * window, -1, -window):
        buckets = [_ONE] * (1 << window)
        for base, exponent in zip(bases, exponents, strict=True):
            digit = exponent >> shift & mask
            if digit:
                buckets[digit] = buckets[digit] * base % modulus
        result = gmpy2.powmod(result, 1 << window, modulus) * _combine_buckets(buckets, modulus) % modulus
    return result


def _combine_buckets(buckets: Sequence[mpz], modulus: mpz) -> mpz:
    """Π buckets[d]^d = Π_d Π_{e ≥ d} buckets[e], d > 0."""
    tail = product = _ONE
    for bucket in reversed(buckets[1:]):
        tail = tail * bucket % modulus
        product = product * tail % modulus
    return product


@lru_cache(maxsize=1 << 12)
def _bucket_window(count: int, width: int) -> int:
    return min(range(1, _MAX_WINDOW), key=lambda window: -(-width // window) * (count + (2 << window)))


def _bucket_cost(count: float, width: int, window: int) -> float:
    """Estimate the multiplications for `count` factors.

    Nonzero digits; combining the buckets, without those that hold 1; squarings, two of which take the time of one
    multiplication.
    """
    combining = (1 << window) * count / (count + 1)
    return -(-width // window) * (count * (1 - 0.5**window) + combining) + width / 2


def _powers(base: mpz, count: int, modulus: mpz) -> list[mpz]:
    """base^0 … base^(count − 1), count ≥ 2."""
    powers = [_ONE, base]
    for _ in range(count - 2):
        powers.append(powers[-1] * base % modulus)
    return powers


def _divide(products: list[mpz], divisors: list[mpz], modulus: mpz) -> list[mpz]:
    """products[i] / divisors[i], with one inversion: that of the product of all divisors."""
    indices = [index for index, divisor in enumerate(divisors) if divisor != 1]
    partial_products = [_ONE]
    for index in indices:
        partial_products.append(partial_products[-1] * divisors[index] % modulus)
    inverse = gmpy2.invert(partial_products.pop(), modulus)
    for index in reversed(indices):
        products[index] = products[index] * (inverse * partial_products.pop() % modulus) % modulus
        inverse = inverse * divisors[index] % modulus
    return products
