"""Matrix products mod 2^64 against Python's integers: extreme values, odd shapes, all strides, dense and sparse."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array, csr_matrix

from veilmeans.crypto import bit_loops, ring_matmul
from veilmeans.crypto.ring import Ring
from veilmeans.crypto.ring_matmul import matmul, sparse_matmul, sparse_matmul_transposed

EDGES = [0, 1, 2**32 - 1, 2**32, 2**32 + 1, 2**63 - 1, 2**63, 2**64 - 1]
SHAPES = [
    (1, 1, 1), (4, 1, 1), (17, 1, 3), (1, 200, 1), (3, 7, 5), (4, 64, 4), (9, 65, 1), (16, 16, 5), (15, 129, 9),
    (33, 3, 8), (100, 63, 2), (257, 16, 5), (5, 1, 300),
]  # fmt: skip
EMPTY = [(0, 3, 2), (3, 0, 2), (3, 2, 0), (0, 0, 0)]
dimensions = st.integers(1, 40)
compiled = partial(matmul, compiled=True)
"""The compiled loop, for small matrices, too."""
seeds = st.integers(0, 2**32 - 1)


def exact(left: Ring, right: Ring) -> Ring:
    """The product by Python's integers."""
    if not left.shape[1]:
        return np.zeros((left.shape[0], right.shape[1]), np.uint64)
    return (left.astype(object) @ right.astype(object) % 2**64).astype(np.uint64)


def matrix(rows: int, columns: int, seed: int) -> Ring:
    """Uniform words, half of them replaced by extreme ones."""
    rng = np.random.default_rng(seed)
    words = rng.integers(0, 2**64, (rows, columns), np.uint64)
    edges = rng.choice(np.array(EDGES, np.uint64), (rows, columns))
    return np.where(rng.random((rows, columns)) < 0.5, words, edges)


def sparse(rows: int, columns: int, seed: int) -> csr_array:
    """A third of the words, some rows and columns empty, some zeros stored."""
    rng = np.random.default_rng(seed)
    keep = (rng.random((rows, columns)) < 0.3) & (rng.random((rows, 1)) < 0.7) & (rng.random((1, columns)) < 0.7)
    row, column = np.nonzero(keep)
    result = csr_array((matrix(rows, columns, seed)[row, column], (row, column)), shape=(rows, columns))
    result.data[rng.random(result.nnz) < 0.2] = 0
    return result


def strided(values: Ring, layout: str) -> Ring:
    """Copy a matrix to another layout in memory."""
    rows, columns = values.shape
    if layout == "F":
        return np.asfortranarray(values)
    if layout == "wide":
        room = np.zeros((2 * rows, columns + 3), np.uint64)[::2, 1 : 1 + columns]
    elif layout == "sparse":
        room = np.zeros((rows, 3 * columns), np.uint64)[:, ::3]
    elif layout == "backwards":
        room = np.zeros((rows, columns), np.uint64)[::-1, ::-1]
    elif layout == "unaligned":
        room = np.zeros(values.nbytes + 1, np.uint8)[1:].view(np.uint64).reshape(rows, columns)
    else:
        room = np.zeros((rows, columns), np.uint64)
    room[...] = values
    room.flags.writeable = False
    return room


LAYOUTS = ["C", "F", "wide", "sparse", "backwards", "unaligned"]


@pytest.mark.parametrize(("rows", "inner", "columns"), SHAPES + EMPTY)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_products_of_all_shapes_and_layouts(rows: int, inner: int, columns: int, layout: str) -> None:
    left, right = matrix(rows, inner, 1), matrix(inner, columns, 2)
    result = compiled(strided(left, layout), strided(right, layout))
    assert result.dtype == np.uint64
    assert result.flags.c_contiguous
    np.testing.assert_array_equal(result, exact(left, right))


@pytest.mark.parametrize(("rows", "inner", "columns"), SHAPES + EMPTY)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_transposed_products(rows: int, inner: int, columns: int, layout: str) -> None:
    left, right = matrix(inner, rows, 3), matrix(inner, columns, 4)
    np.testing.assert_array_equal(compiled(strided(left, layout).T, right), exact(left.T, right))


@given(dimensions, dimensions, dimensions, st.sampled_from(LAYOUTS), st.sampled_from(LAYOUTS), seeds)
@settings(deadline=None)
def test_any_product(rows: int, inner: int, columns: int, one: str, two: str, seed: int) -> None:
    left, right = matrix(rows, inner, seed), matrix(inner, columns, seed + 1)
    np.testing.assert_array_equal(compiled(strided(left, one), strided(right, two)), exact(left, right))


@pytest.mark.parametrize("x", EDGES)
@pytest.mark.parametrize("y", EDGES)
def test_sums_of_extreme_products_wrap(x: int, y: int) -> None:
    left, right = np.full((20, 150), x, np.uint64), np.full((150, 3), y, np.uint64)
    assert set(compiled(left, right).reshape(-1).tolist()) == {150 * x * y % 2**64}


@given(dimensions, dimensions, dimensions, seeds)
@settings(deadline=None)
def test_small_products_without_the_compiled_loop_are_the_same(rows: int, inner: int, columns: int, seed: int) -> None:
    left, right = matrix(rows, inner, seed), matrix(inner, columns, seed + 1)
    np.testing.assert_array_equal(matmul(left, right, compiled=False), exact(left, right))


@pytest.mark.parametrize("kind", [csr_array, csr_matrix])
@given(dimensions, dimensions, dimensions, st.sampled_from(LAYOUTS), seeds)
@settings(deadline=None)
def test_sparse_products(kind: type, rows: int, inner: int, columns: int, layout: str, seed: int) -> None:
    left, right = kind(sparse(rows, inner, seed)), matrix(inner, columns, seed + 1)
    result = sparse_matmul(left, strided(right, layout))
    assert isinstance(result, np.ndarray)
    assert result.dtype == np.uint64
    np.testing.assert_array_equal(result, exact(left.toarray(), right))


@given(dimensions, dimensions, dimensions, seeds)
@settings(deadline=None)
def test_transposed_sparse_products(rows: int, inner: int, columns: int, seed: int) -> None:
    left, right = sparse(inner, rows, seed), matrix(inner, columns, seed + 1)
    np.testing.assert_array_equal(sparse_matmul_transposed(left, right), exact(left.toarray().T, right))


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (4, 3)])
def test_empty_sparse_matrices(shape: tuple[int, int]) -> None:
    left = csr_array(shape, dtype=np.uint64)
    assert not sparse_matmul(left, matrix(shape[1], 2, 1)).any()
    assert sparse_matmul_transposed(left, matrix(shape[0], 2, 1)).shape == (shape[1], 2)


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"3 columns .* 4 rows"):
        matmul(matrix(2, 3, 0), matrix(4, 2, 0))
    with pytest.raises(ValueError, match=r"3 columns .* 4 rows"):
        sparse_matmul(sparse(2, 3, 0), matrix(4, 2, 0))


def test_other_types_are_refused() -> None:
    with pytest.raises(TypeError, match="int64"):
        matmul(np.zeros((20, 3), np.int64), matrix(3, 2, 0))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="float64"):
        sparse_matmul(csr_array((2, 3)), matrix(3, 2, 0))


@pytest.mark.processes
def test_loops_are_compiled_where_no_cache_can_be_written(tmp_path: Path) -> None:
    """A worker's package and home folders may be read-only."""
    program = (
        "import numpy as np, numba.core.caching as caching\n"
        "caching.CacheImpl._locator_classes = []\n"
        "from veilmeans.crypto.ring_matmul import matmul\n"
        "x = np.arange(2**16, dtype=np.uint64).reshape(-1, 16)\n"
        "assert (matmul(x.T, x) == x.T @ x).all()\n"
    )
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "none")}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)


@pytest.mark.parametrize(("variable", "pays"), [(None, True), ("late", True), ("never", False)])
def test_loops_are_not_compiled_where_the_environment_forbids_it(
    monkeypatch: pytest.MonkeyPatch, variable: str | None, pays: bool
) -> None:
    monkeypatch.delenv("VEILMEANS_COMPILE", raising=False)
    if variable is not None:
        monkeypatch.setenv("VEILMEANS_COMPILE", variable)
    for module in (ring_matmul, bit_loops):
        monkeypatch.setattr(module, "COMPILED_AFTER", 0)
    monkeypatch.setattr(bit_loops, "has_compiler", lambda: True)
    assert ring_matmul.compiling_pays(ring_matmul.COMPILED_FROM, 1) is pays
    assert bit_loops.compiling_pays(1, bit_loops.COMPILED_FROM) is pays


def test_narrow_products_never_bring_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of 10^9 rows with few columns and clusters is that of 10^6."""
    monkeypatch.delenv("VEILMEANS_COMPILE", raising=False)
    monkeypatch.setattr(ring_matmul, "_multiplied", 0)
    monkeypatch.setattr(bit_loops, "_worked", 0)
    monkeypatch.setattr(bit_loops, "has_compiler", lambda: False)
    rows, each_row = 10**9, 8 * 5
    assert not ring_matmul.compiling_pays(rows * each_row, rows)
    assert not bit_loops.compiling_pays(32, rows)
    assert ring_matmul.compiling_pays(rows * ring_matmul.WIDE, rows)


def test_a_transposed_product_is_wide_by_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[tuple[int, int]]()

    def note(multiplications: int, rows: int) -> bool:
        seen.append((multiplications, rows))
        return False

    monkeypatch.setattr(ring_matmul, "compiling_pays", note)
    tall, small = matrix(50, 3, 0), matrix(3, 2, 0)
    matmul(tall, small)
    matmul(tall.T, matrix(50, 2, 0))
    assert seen == [(300, 50), (300, 50)]
