"""Values that grow in even steps: what a trace says of a few rows, carried on to many.

In a protocol every shape is affine in the number of rows n, as long as n mod some period p stays the same (bits are
packed eight to a byte, rows in groups to a ciphertext): from a value at n and at n + p follows the one at n + t·p.
"""

from dataclasses import fields, is_dataclass, replace
from typing import Any


class NotAffineError(Exception):
    """The two values differ in something that is no whole number."""


def carried_on(first: Any, second: Any, steps: int) -> Any:
    """The value `steps` after `first`, if `second` is one after it: number by number through tuples and dataclasses."""
    if first == second:
        return first
    if type(first) is not type(second):
        raise NotAffineError
    if type(first) is int:
        return first + steps * (second - first)
    if isinstance(first, tuple) and len(first) == len(second):
        return tuple(carried_on(a, b, steps) for a, b in zip(first, second, strict=True))
    if is_dataclass(first) and not isinstance(first, type):
        names = [field.name for field in fields(first)]
        values = {name: carried_on(getattr(first, name), getattr(second, name), steps) for name in names}
        return replace(first, **values)
    raise NotAffineError
