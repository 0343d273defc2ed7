"""Products of powers against `pow`: all signs, zeros, empty rows and columns, every algorithm."""

from functools import cache
from math import prod

import numpy as np
import pytest
from gmpy2 import mpz
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from support.fixed_values import fixed_key, number
from veilmeans.crypto.he.multiexp import PowerTables, choose_window, column_products, row_products

MODULUS = fixed_key("okamoto-uchiyama").public.modulus
WINDOWS = [None, 1, 2, 5, 9]


@cache
def bases(count: int) -> list[mpz]:
    return [number(f"base {position}", 1024) % MODULUS for position in range(count)]


@st.composite
def sparse(draw: st.DrawFn, bits: int) -> csr_array:
    """Small, with stored zeros, empty rows and columns, and the largest exponents of both signs."""
    shape = draw(st.tuples(st.integers(0, 6), st.integers(1, 6)))
    top = 2**bits - 1
    value = st.sampled_from([0, 1, -1, top, -top]) | st.integers(-top, top)
    cell = st.none() | value
    cells = draw(st.lists(cell, min_size=shape[0] * shape[1], max_size=shape[0] * shape[1]))
    positions = [position for position, each in enumerate(cells) if each is not None]
    data = np.array([cells[position] for position in positions], np.int64)
    return csr_array((data, np.divmod(np.array(positions, np.int64), shape[1])), shape=shape)


def expected(matrix: np.ndarray) -> list[int]:
    """Π_c bases[c]^x_rc for each row, by `pow`."""
    powers = [
        [pow(base, int(x), MODULUS) for base, x in zip(bases(matrix.shape[1]), row, strict=True)] for row in matrix
    ]
    return [prod(row) % MODULUS for row in powers]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("bits", [1, 2, 7, 20, 24])
@settings(deadline=None, max_examples=15)
@given(st.data())
def test_row_products(bits: int, window: int | None, data: st.DataObject) -> None:
    matrix = data.draw(sparse(bits))
    tables = PowerTables(bases(matrix.shape[1]), MODULUS, bits, window)
    for _ in range(2):
        assert row_products(matrix, tables) == expected(matrix.toarray())


@pytest.mark.parametrize("bits", [1, 2, 7, 20, 24])
@settings(deadline=None, max_examples=30)
@given(st.data())
def test_column_products(bits: int, data: st.DataObject) -> None:
    matrix = data.draw(sparse(bits))
    columns, products = column_products(matrix, bases(matrix.shape[0]), MODULUS, bits)
    assert columns.tolist() == np.flatnonzero((matrix.toarray() != 0).any(axis=0)).tolist()
    assert columns.dtype == np.int64
    assert products == expected(matrix.toarray().T[columns])


@pytest.mark.parametrize("window", [None, 5])
def test_rows_in_several_chunks(window: int | None) -> None:
    matrix = np.arange(-20, 20).reshape(10, 4)
    tables = PowerTables(bases(4), MODULUS, 5, window)
    assert row_products(csr_array(matrix), tables, rows_per_chunk=3) == expected(matrix)


def test_many_nonzeros_in_a_column_and_in_a_row() -> None:
    matrix = np.random.default_rng(5).integers(-(2**12), 2**12, (1, 300))
    products = expected(matrix)
    _, by_column = column_products(csr_array(matrix.T), bases(300), MODULUS, 12)
    assert by_column == products
    assert row_products(csr_array(matrix), PowerTables(bases(300), MODULUS, 12, None)) == products


@pytest.mark.parametrize("stored", [True, False])
def test_a_zero_matrix_gives_products_of_one_and_no_columns(stored: bool) -> None:
    matrix = csr_array(np.ones((3, 2), np.int64))
    matrix.data[:] = 0
    if not stored:
        matrix.eliminate_zeros()
    assert row_products(matrix, PowerTables(bases(2), MODULUS, 8, 4)) == [1, 1, 1]
    columns, products = column_products(matrix, bases(3), MODULUS, 8)
    assert (columns.tolist(), products) == ([], [])


def test_tables_are_computed_only_for_columns_that_occur() -> None:
    tables = PowerTables(bases(4), MODULUS, 8, 4)
    row_products(csr_array(np.array([[0, 200, 0, 0]])), tables)
    computed = [index for index, factor in enumerate(tables.factors) if factor is not None]
    assert computed == list(range(32, 64))


@pytest.mark.parametrize("sign", [1, -1])
def test_an_exponent_with_too_many_bits_is_refused(sign: int) -> None:
    for bits in (1, 5):
        matrix = csr_array(np.array([[0, sign * 2**bits]]))
        with pytest.raises(ValueError, match=f"more than {bits} bits"):
            row_products(matrix, PowerTables(bases(2), MODULUS, bits, None))
        with pytest.raises(ValueError, match=f"more than {bits} bits"):
            column_products(matrix, bases(1), MODULUS, bits)


def test_the_most_negative_word_is_refused_as_an_exponent() -> None:
    with pytest.raises(ValueError, match="more than 64 bits"):
        row_products(csr_array(np.array([[-(2**63)]])), PowerTables(bases(1), MODULUS, 64, None))


def test_matrices_that_do_not_fit_the_bases_are_refused() -> None:
    matrix = csr_array(np.ones((2, 3), np.int64))
    with pytest.raises(ValueError, match=r"3 columns.* 2 bases"):
        row_products(matrix, PowerTables(bases(2), MODULUS, 1, None))
    with pytest.raises(ValueError, match=r"2 rows.* 3 bases"):
        column_products(matrix, bases(3), MODULUS, 1)


@settings(deadline=None)
@given(st.integers(1, 10**6), st.integers(0, 10**8), st.integers(1, 24), st.integers(0, 2**32))
def test_the_chosen_window_costs_least_of_those_that_fit(columns: int, nonzeros: int, bits: int, memory: int) -> None:
    def cost(window: int) -> int:
        return -(-bits // window) * (columns * 2**window + nonzeros)

    chosen = choose_window(columns, nonzeros, bits, memory)
    fitting = [each for each in range(1, min(bits, 16) + 1) if columns * -(-bits // each) * 2**each * 320 <= memory]
    if chosen is not None:
        assert chosen in fitting
        assert cost(chosen) == min(cost(each) for each in fitting)


def test_tables_are_used_only_where_they_save_multiplications() -> None:
    assert choose_window(100, 655_360, 20, 2**28) == 10
    assert choose_window(100, 655_360, 20, 2**24) == 7
    assert choose_window(100, 65_536, 20, 2**28) == 7
    assert choose_window(10**6, 10**6, 20, 2**40) is None
    assert choose_window(100, 10**6, 20, 1000) is None
    assert choose_window(100, 10**6, 1, 2**40) is None
