"""What the columns of a source become: each field of it one column of numbers, or many."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from veilmeans.io.names import Names, Part

Kind = Literal["number", "matrix"]


@dataclass(frozen=True)
class Field:
    """A field of the source, and the `width` columns that it becomes.

    number   the value as it is
    matrix   all columns of a sparse matrix, whose zeros stay zeros; svmlight indices count from `base`
    """

    name: str
    kind: Kind = "number"
    width: int = 1
    base: int = 0

    @property
    def parts(self) -> tuple[Part, ...]:
        """The columns' names, as `Names` has them."""
        return (self.name,) if self.kind == "number" else (("", self.width),)


def names_of(fields: Sequence[Field]) -> Sequence[str]:
    """The names of all columns."""
    parts = tuple(part for field in fields for part in field.parts)
    return Names(parts) if any(not isinstance(part, str) for part in parts) else tuple(str(part) for part in parts)


def of_kind(fields: Sequence[Field], *kinds: Kind) -> NDArray[np.bool_]:
    """Which columns come from fields of these kinds."""
    return np.repeat([field.kind in kinds for field in fields], [field.width for field in fields])
