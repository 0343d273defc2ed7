"""Matrix products mod 2^64, dense and sparse.

numpy's `@` on integers is a plain loop; so are these, but compiled by numba for the shapes at hand: a tall matrix
times a small one, and its transpose times another tall one. They take about half the time. To import numba takes one
or two seconds, to compile two more (cached on disk where that can be written), so a process begins with numpy's, and
changes over when that has cost about as much. numba also takes some 140 MiB of memory: only wide products are worth
that (65,536 × 4 by 4 × 5 takes 1.5 ms instead of 0.9, in rounds of some hundred), so that the memory of a job of
narrow ones does not depend on its rows. With VEILMEANS_COMPILE=never in the environment no process changes over. The
sparse loops are scipy's own.
"""

import os
import sys
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np

from veilmeans.crypto.ring import DTYPE, Ring

if TYPE_CHECKING:
    from scipy.sparse import csr_array, csr_matrix

Sparse: TypeAlias = "csr_array | csr_matrix"
COMPILED_FROM = 1 << 14
"""Scalar multiplications in one product from which the compiled loop is faster than numpy's `@`."""
COMPILED_AFTER = 1 << 30
"""Scalar multiplications in such wide products after which a process compiles the loops."""
WIDE = 256
"""Scalar multiplications for each row from which a product is wide."""
_multiplied = 0


def matmul(left: Ring, right: Ring, compiled: bool | None = None) -> Ring:
    """left · right mod 2^64. `compiled`: by the compiled loop or by numpy; by default, as pays."""
    _check_operands(left, left.shape[1], right)
    (rows, inner), columns = left.shape, right.shape[1]
    if compiled is None:
        compiled = compiling_pays(rows * inner * columns, max(rows, inner))
    if not compiled or not (left.flags.aligned and right.flags.aligned):
        product: Ring = np.ascontiguousarray(left) @ right
        return product
    if left.flags.f_contiguous and not left.flags.c_contiguous:
        out = np.zeros((rows, columns), DTYPE)
        _compiled(_add_transposed)(left.T, np.ascontiguousarray(right), out)
    else:
        out = np.empty((rows, columns), DTYPE)
        _compiled(_multiply)(np.ascontiguousarray(left), np.ascontiguousarray(right.T), out)
    return out


def compiling_pays(multiplications: int, rows: int) -> bool:
    """Return whether a product of so many multiplications should be compiled, given all before it in this process."""
    global _multiplied
    if multiplications < COMPILED_FROM:
        return False
    if multiplications >= WIDE * rows:
        _multiplied += multiplications
    return _multiplied > COMPILED_AFTER and may_compile()


def may_compile() -> bool:
    """Return whether this process may change over to compiled loops."""
    return os.environ.get("VEILMEANS_COMPILE") != "never"


def has_compiler() -> bool:
    """Return whether this process has imported numba already, for whatever it was."""
    return "numba" in sys.modules


def sparse_matmul(left: Sparse, right: Ring) -> Ring:
    """left · right mod 2^64, left in compressed rows."""
    return _sparse_product(left, left.shape[1], right)


def sparse_matmul_transposed(left: Sparse, right: Ring) -> Ring:
    """leftᵀ · right mod 2^64, without rearranging the left matrix."""
    return _sparse_product(left.T, left.shape[0], right)


def _sparse_product(left: Any, inner: int, right: Ring) -> Ring:
    _check_operands(left, inner, right)
    product: Ring = left @ right
    return product


def _check_operands(left: Any, inner: int, right: Ring) -> None:
    if inner != len(right):
        raise ValueError(f"the left matrix has {inner} columns and the right one {len(right)} rows")
    if left.dtype != DTYPE or right.dtype != DTYPE:
        raise TypeError(f"products mod 2^64 are of uint64, not of {left.dtype} and {right.dtype}")


def _multiply(x: Ring, y: Ring, out: Ring) -> None:
    """out = x·yᵀ, four columns at a time, so that each x is read once for them."""
    rows, inner = x.shape
    columns = len(y)
    in_fours = columns - columns % 4
    for i in range(rows):
        for c in range(0, in_fours, 4):
            s0 = s1 = s2 = s3 = np.uint64(0)
            for j in range(inner):
                s0 += x[i, j] * y[c, j]
                s1 += x[i, j] * y[c + 1, j]
                s2 += x[i, j] * y[c + 2, j]
                s3 += x[i, j] * y[c + 3, j]
            out[i, c], out[i, c + 1], out[i, c + 2], out[i, c + 3] = s0, s1, s2, s3
        for c in range(in_fours, columns):
            s0 = np.uint64(0)
            for j in range(inner):
                s0 += x[i, j] * y[c, j]
            out[i, c] = s0


def _add_transposed(x: Ring, y: Ring, out: Ring) -> None:
    """out += xᵀ·y, row by row of both."""
    for i in range(len(x)):
        for j in range(x.shape[1]):
            for c in range(y.shape[1]):
                out[j, c] += x[i, j] * y[i, c]


ArrayKind = tuple[str, int, bool]
"""Element type, dimensions, and whether the loop only reads it: a contiguous array."""


def _compiled(loop: Callable[[Ring, Ring, Ring], None]) -> Callable[[Ring, Ring, Ring], None]:
    return compile_loop(loop, (("uint64", 2, True), ("uint64", 2, True), ("uint64", 2, False)))


@cache
def compile_loop(loop: Callable[..., None], arguments: tuple[ArrayKind | str, ...]) -> Callable[..., None]:
    """Compile a loop once for arguments of these types; without numba's cache where none can be written.

    What a loop only reads may be read-only or writable.
    """
    from numba import njit, types

    def type_of(argument: ArrayKind | str) -> Any:
        if isinstance(argument, str):
            return getattr(types, argument)
        return types.Array(getattr(types, argument[0]), argument[1], "C", readonly=argument[2])

    signature = types.void(*map(type_of, arguments))
    try:
        compiled = njit(signature, cache=True, nogil=True)(loop)
    except RuntimeError:
        compiled = njit(signature, nogil=True)(loop)
    return cast(Callable[..., None], compiled)
