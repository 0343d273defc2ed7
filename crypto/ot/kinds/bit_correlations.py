"""BitProducts of two parties by OTs: mask bits, and the sums of products of them (`product_programs`).

The first half of the words has party 0 as the one that chooses, or chooses first, the second half party 1, so that both
send about as much.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce

import numpy as np

from veilmeans.crypto import prg
from veilmeans.crypto.correlations import BitProducts, Factor, Product, ProductGroups
from veilmeans.crypto.ot.kinds.product_programs import Polynomial, Program, compile_program, multiply
from veilmeans.crypto.ot.kinds.product_shares import ProductRun, requests_of
from veilmeans.crypto.ot.ot_arrays import MessageShapes, OtRequest, OtSide
from veilmeans.schemas.arrays import Array, Arrays


@dataclass(frozen=True)
class _Piece:
    """Groups alike over some words: their first row among the mask bits and among the sums."""

    groups: ProductGroups
    program: Program
    words: slice
    mask_row: int
    sum_row: int

    @property
    def width(self) -> int:
        """Words of a plane of all groups."""
        return self.groups.count * len(range(self.words.start, self.words.stop))


@dataclass(frozen=True)
class BitProductsByOt:
    """The recipe for `BitProducts`."""

    kind: BitProducts

    def requests(self) -> list[OtRequest]:
        return [request for piece in self._pieces() for request in requests_of(piece.program, piece.width)]

    def message(self, party: int, sides: Sequence[OtSide], key: bytes) -> dict[str, Array]:
        """The bits that `party` sends."""
        bits = [run.bits_to_send().reshape(-1) for _, run in self._runs(party, sides, key)]
        return {"bits": np.concatenate([np.empty(0, np.uint64), *bits])}

    def message_shapes(self, party: int) -> MessageShapes:
        """The shapes and types of what `party` sends."""
        words = sum(
            piece.width * (len(step.entries) - len(step.free))
            for piece in self._pieces()
            for step in piece.program.steps
            if step.chooser != party
        )
        return {"bits": ((words,), np.uint64)}

    def parts(self, party: int, sides: Sequence[OtSide], key: bytes, received: Arrays) -> dict[str, Array]:
        """All parts of the kind at `party`."""
        masks = np.empty((self.kind.mask_rows, self.kind.words), np.uint64)
        rows = sum(each.count * len(each.sums) for each in self.kind.groups)
        sums, start = np.empty((rows, self.kind.words), np.uint64), 0
        for piece, run in self._runs(party, sides, key):
            size = run.received_rows() * piece.width
            shares = run.shares(received["bits"][start : start + size].reshape(-1, piece.width))
            start += size
            for planes, first, values in ((masks, piece.mask_row, run.variables), (sums, piece.sum_row, shares)):
                by_group = values.reshape(len(values), piece.groups.count, -1).swapaxes(0, 1)
                view = planes[first : first + by_group.shape[0] * by_group.shape[1], piece.words]
                view[:] = by_group.reshape(view.shape)
        return {self.kind.mask_of(party): masks, "sums": sums}

    def _runs(self, party: int, sides: Sequence[OtSide], key: bytes) -> Iterator[tuple[_Piece, ProductRun]]:
        remaining = iter(sides)
        for number, piece in enumerate(self._pieces()):
            own = piece.groups.masks // (2 if self.kind.known else 1)
            variables = np.empty((own, piece.width), np.uint64)
            prg.fill(prg.derive(key, f"variables {number}"), variables)
            taken = [next(remaining) for _ in piece.program.steps]
            yield piece, ProductRun.begin(piece.program, party, taken, variables)

    def _pieces(self) -> Iterator[_Piece]:
        middle, mask_row, sum_row = self.kind.words // 2, 0, 0
        halves = slice(0, middle), slice(middle, self.kind.words)
        for groups in self.kind.groups:
            for chooser, words in enumerate(halves):
                if words.stop > words.start:
                    program = group_program(groups.masks, groups.sums, self.kind.known, chooser)
                    yield _Piece(groups, program, words, mask_row, sum_row)
            mask_row += groups.count * groups.masks // (2 if self.kind.known else 1)
            sum_row += groups.count * len(groups.sums)


@lru_cache(maxsize=256)
def group_program(masks: int, sums: tuple[tuple[Product, ...], ...], known: bool, chooser: int) -> Program:
    """The program for one group's sums."""

    def mask(number: int) -> Polynomial:
        if not known:
            return frozenset({(1 << number, 0), (0, 1 << number)})
        party, variable = divmod(number, masks // 2)
        return frozenset({(0, 1 << variable) if party else (1 << variable, 0)})

    def factor(numbers: Factor) -> Polynomial:
        return reduce(frozenset.symmetric_difference, map(mask, numbers))

    def product(factors: Product) -> Polynomial:
        return reduce(multiply, map(factor, factors))

    wanted = tuple(reduce(frozenset.symmetric_difference, map(product, each)) for each in sums)
    return compile_program(wanted, chooser)
