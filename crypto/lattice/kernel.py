"""Compiled loops, and the two instructions on words that they need: the high word of a product, and a count of bits.

Nothing is compiled at import: a kernel is compiled at its first call and cached on disk where that can be written. The
cache of a kernel notices changes of its own file only: after a change of a function that others inline, delete the
`__pycache__` of this folder.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

Word = np.uint64
Words = NDArray[np.uint64]
F = TypeVar("F", bound=Callable[..., Any])


def kernel(function: F) -> F:
    """Compile at the first call; without numba's cache where none can be written."""
    try:
        compiled = njit(cache=True, nogil=True)(function)
    except RuntimeError:
        compiled = njit(nogil=True)(function)
    return cast(F, compiled)


def _high_word(_typing: Any, _left: Any, _right: Any) -> Any:
    def code(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        wide = ir.IntType(128)
        left, right = (builder.zext(each, wide) for each in arguments)
        return builder.trunc(builder.lshr(builder.mul(left, right), ir.Constant(wide, 64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), code


def _count_ones(_typing: Any, _word: Any) -> Any:
    def code(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.uint64(types.uint64), code


high_word = cast(Callable[[Word, Word], Word], intrinsic(_high_word))
"""⌊left·right/2^64⌋: LLVM's 128-bit product, one `mul` on x86-64, `umulh` on ARM64."""
count_ones = cast(Callable[[Word], Word], intrinsic(_count_ones))
"""The number of ones in a word."""
