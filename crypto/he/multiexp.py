"""Products of powers of residues, the exponents in a sparse matrix: only its nonzeros are touched.

  row_products      Π_c b_c^x_rc for each row r       tables of the powers of each b_c, or Straus where they do not pay
  column_products   Π_r b_r^x_rc for each column c    Pippenger's buckets

Exponents are signed. Those below zero make a product of their own, which is inverted: all of them at once, with
Montgomery's trick (one inversion, and three multiplications each). An exponent ±1 costs one multiplication.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import islice, pairwise
from typing import Any, NamedTuple

import gmpy2
import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

Integers = NDArray[np.int64]
_CHUNK = 1 << 12
"""Rows whose factors are listed at once."""
_MOST_WINDOW = 16
_OVERHEAD = 64
"""Bytes that a residue in a list takes beside its own."""
_ONE = mpz(1)


class PowerTables:
    """Entry (c·places + j)·2^w + d of `factors` is bases[c]^(d·2^(w·j)), for digits d of w = `window` bits.

    A column's table is made when it first occurs. Threads may share them: two that make the same one write the same.
    """

    def __init__(self, bases: Sequence[mpz], modulus: mpz, bits: int, window: int | None) -> None:
        self.bases, self.modulus, self.bits = list(bases), modulus, bits
        self.window = min(window, bits) if window and bits > 1 else None
        self.row_shards = -(-bits // self.window) if self.window else 0
        self.factors: list[mpz] = [None] * (len(self.bases) * self.row_shards << (self.window or 0))
        self._made = np.zeros(len(self.bases), np.bool_)

    def make(self, columns: Integers) -> None:
        """The tables of these columns, where they are not there yet."""
        wanted = np.zeros(len(self.bases), np.bool_)
        wanted[columns] = True
        for column in np.flatnonzero(wanted & ~self._made).tolist():
            self._make(column)
            self._made[column] = True

    def _make(self, column: int) -> None:
        window, base = self.window or 0, self.bases[column]
        for place in range(self.row_shards):
            powers = _powers(base, 1 << min(window, self.bits - place * window), self.modulus)
            start = column * self.row_shards + place << window
            self.factors[start : start + len(powers)] = powers
            base = powers[-1] * base % self.modulus


def choose_window(columns: int, uses: int, bits: int, memory: int, size: int = 256) -> int | None:
    """The digits' width with which tables of all columns, and `uses` nonzeros, take the fewest multiplications.

    The tables stay within `memory` bytes, a residue being of `size` bytes. None: Straus takes fewer.
    """
    fewest, best = uses * _straus_cost(bits, _straus_window(bits)), None
    for window in range(1, min(bits, _MOST_WINDOW) + 1):
        places = -(-bits // window)
        entries = columns * places << window
        if entries + uses * places < fewest and entries * (size + _OVERHEAD) <= memory:
            fewest, best = entries + uses * places, window
    return best


def row_multiplications(columns: int, uses: float, rows: float, bits: int, memory: int, size: int = 256) -> float:
    """About how many `row_products` takes for `rows` rows with `uses` nonzeros in all, its tables included."""
    if bits == 1:
        return uses
    fewest = uses * _straus_cost(bits, _straus_window(bits)) + min(rows, uses) * bits
    for window in range(1, min(bits, _MOST_WINDOW) + 1):
        places = -(-bits // window)
        if (columns * places << window) * (size + _OVERHEAD) <= memory:
            fewest = min(fewest, (min(columns, uses) * (1 << window) + uses) * places)
    return fewest


def column_multiplications(columns: int, uses: float, bits: int) -> float:
    """About how many `column_products` takes for `uses` nonzeros, spread evenly over the columns."""
    if bits == 1 or not uses:
        return uses
    filled = min(float(columns), uses)
    costs = (_bucket_cost(uses / filled, bits, window) for window in range(1, _MOST_WINDOW))
    return filled * min(costs)


def row_products(matrix: Any, tables: PowerTables) -> list[mpz]:
    """Π_c bases[c]^x_rc for each row r of a csr matrix; 1 for an empty row."""
    if matrix.shape[1] != len(tables.bases):
        raise ValueError(f"the matrix has {matrix.shape[1]} columns, and there are {len(tables.bases)} bases")
    products: list[mpz] = []
    for start in range(0, matrix.shape[0], _CHUNK):
        chunk = matrix[start : start + _CHUNK]
        positive, negative = _by_sign(chunk, tables.bits)
        products += _divide(_group_products(positive, tables), _group_products(negative, tables), tables.modulus)
    return products


def column_products(matrix: Any, rows: Sequence[mpz], modulus: mpz, bits: int) -> tuple[Integers, list[mpz]]:
    """The columns of a csr matrix that have nonzeros, ascending, and Π_r rows[r]^x_rc for each."""
    if matrix.shape[0] != len(rows):
        raise ValueError(f"the matrix has {matrix.shape[0]} rows, and there are {len(rows)} bases")
    positive, negative = _by_sign(matrix.tocsc(), bits)
    columns = np.flatnonzero(positive.sizes + negative.sizes)
    products = _bucket_products(positive.only(columns), rows, modulus)
    divisors = _bucket_products(negative.only(columns), rows, modulus)
    return columns, _divide(products, divisors, modulus)


class _Powers(NamedTuple):
    """Group i is Π bases[keys[j]]^exponents[j], starts[i] ≤ j < starts[i + 1]; all exponents are above zero."""

    starts: Integers
    keys: Integers
    exponents: Integers

    @property
    def sizes(self) -> Integers:
        return np.diff(self.starts)

    def only(self, groups: Integers) -> "_Powers":
        """These groups, when all others are empty."""
        return self._replace(starts=np.append(self.starts[groups], self.starts[-1]))


def _by_sign(matrix: Any, bits: int) -> tuple[_Powers, _Powers]:
    """The powers with exponents above zero, and those below, turned round. Groups are what the matrix compresses."""
    exponents = np.asarray(matrix.data, np.int64)
    limit = 1 << min(bits, 63)
    if len(exponents) and not -limit < int(exponents.min()) <= int(exponents.max()) < limit:
        raise ValueError(f"an exponent has more than {bits} bits")
    keys = np.asarray(matrix.indices, np.int64)

    def chosen(which: NDArray[np.bool_]) -> _Powers:
        before = np.concatenate(([0], np.cumsum(which)))
        return _Powers(before[matrix.indptr], keys[which], np.abs(exponents[which]))

    return chosen(exponents > 0), chosen(exponents < 0)


def _group_products(powers: _Powers, tables: PowerTables) -> list[mpz]:
    if tables.bits == 1:
        return _gathered(tables.bases, powers.keys, powers.sizes, tables.modulus)
    if tables.window is None:
        return _straus_products(powers, tables.bases, tables.modulus)
    tables.make(powers.keys)
    places = np.arange(tables.row_shards)
    digits = powers.exponents[:, None] >> (tables.window * places) & ((1 << tables.window) - 1)
    entries = ((powers.keys[:, None] * tables.row_shards + places) << tables.window) + digits
    used = digits != 0
    before = np.concatenate(([0], np.cumsum(used.sum(axis=1))))
    return _gathered(tables.factors, entries[used], np.diff(before[powers.starts]), tables.modulus)


def _gathered(factors: list[mpz], keys: Integers, sizes: Integers, modulus: mpz) -> list[mpz]:
    """The product of factors[key] over each group of keys."""
    remaining = iter(keys.tolist())
    products = []
    for size in sizes.tolist():
        product = _ONE
        for key in islice(remaining, size):
            product = product * factors[key] % modulus
        products.append(product)
    return products


def _straus_products(powers: _Powers, bases: Sequence[mpz], modulus: mpz) -> list[mpz]:
    keys, exponents = powers.keys.tolist(), powers.exponents.tolist()
    return [
        _straus([bases[key] for key in keys[start:end]], exponents[start:end], modulus)
        for start, end in pairwise(powers.starts.tolist())
    ]


def _straus(bases: Sequence[mpz], exponents: Sequence[int], modulus: mpz) -> mpz:
    """Π bases[i]^exponents[i]: all digits of one place, then `window` squarings for all of them."""
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
    return min(range(1, _MOST_WINDOW), key=lambda window: _straus_cost(width, window))


def _straus_cost(width: int, window: int) -> float:
    """Multiplications for one factor: its table, and the digits that are not zero. (Squarings are the group's.)"""
    return (1 << window) - 2 + -(-width // window) * (1 - 0.5**window)


def _bucket_products(powers: _Powers, bases: Sequence[mpz], modulus: mpz) -> list[mpz]:
    products = []
    for start, end in pairwise(powers.starts.tolist()):
        factors = [bases[key] for key in powers.keys[start:end].tolist()]
        products.append(_pippenger(factors, powers.exponents[start:end].tolist(), modulus))
    return products


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
        result = gmpy2.powmod(result, 1 << window, modulus) * _joined(buckets, modulus) % modulus
    return result


def _joined(buckets: Sequence[mpz], modulus: mpz) -> mpz:
    """Π buckets[d]^d = Π_d Π_{e ≥ d} buckets[e], d > 0."""
    tail = product = _ONE
    for bucket in reversed(buckets[1:]):
        tail = tail * bucket % modulus
        product = product * tail % modulus
    return product


@lru_cache(maxsize=1 << 12)
def _bucket_window(count: int, width: int) -> int:
    return min(range(1, _MOST_WINDOW), key=lambda window: -(-width // window) * (count + (2 << window)))


def _bucket_cost(count: float, width: int, window: int) -> float:
    """Multiplications for `count` factors: their digits that are not zero; joins, those with 1 left out; squarings, two
    of which take the time of one multiplication."""
    joins = (1 << window) * count / (count + 1)
    return -(-width // window) * (count * (1 - 0.5**window) + joins) + width / 2


def _powers(base: mpz, count: int, modulus: mpz) -> list[mpz]:
    """base^0 … base^(count − 1), count ≥ 2."""
    powers = [_ONE, base]
    for _ in range(count - 2):
        powers.append(powers[-1] * base % modulus)
    return powers


def _product(factors: Iterable[mpz], modulus: mpz) -> mpz:
    product = _ONE
    for factor in factors:
        product = product * factor % modulus
    return product


def _divide(products: list[mpz], divisors: list[mpz], modulus: mpz) -> list[mpz]:
    """products[i] / divisors[i]. One inversion: of all divisors' product, multiplied back one by one."""
    places = [place for place, divisor in enumerate(divisors) if divisor != 1]
    before = [_ONE]
    for place in places:
        before.append(before[-1] * divisors[place] % modulus)
    inverse = gmpy2.invert(before.pop(), modulus)
    for place in reversed(places):
        products[place] = products[place] * (inverse * before.pop() % modulus) % modulus
        inverse = inverse * divisors[place] % modulus
    return products
