"""Shapes and sizes of a lattice product's two messages, from the shapes of its matrices alone.

U has `rows` × `columns`, and V has `outputs` columns. U is cut into pieces of N rows of one column, L = ⌈rows/N⌉ to a
column; a piece is one polynomial, encrypted with one mask and under one secret:

              product   secrets   masks         results       terms of a result
  distance    U·V       L         columns       rows          columns
  update      Uᵀ·V      columns   L             columns       rows

  operand     secrets · (masks + 1) · 4N · 54 bits             once per store and shard
  response    outputs · (80·N + 66·results) bits               per product; the 2-bit tails are padded to a word
"""

from dataclasses import dataclass

from veilmeans.crypto.correlations import MatMul
from veilmeans.crypto.lattice.parameters import DEGREE, PRIMES, RESIDUE_BITS, RESULT_BITS
from veilmeans.schemas.arrays import ArraySpec, Spec

BODY_WORDS = len(PRIMES) * DEGREE * RESIDUE_BITS // 64
"""Words of one packed polynomial."""
TAIL_BITS = RESULT_BITS - 64
_WORD = "<u8"


@dataclass(frozen=True)
class ProductShape:
    """The shape of U·V, or of Uᵀ·V if `transposed`."""

    rows: int
    columns: int
    outputs: int
    transposed: bool

    @classmethod
    def of(cls, kind: MatMul) -> "ProductShape":
        """The shape of a matrix triple."""
        rows, columns = (kind.inner, kind.rows) if kind.transposed else (kind.rows, kind.inner)
        return cls(rows, columns, kind.columns, kind.transposed)

    @property
    def blocks(self) -> int:
        """Pieces of N rows, L."""
        return -(-self.rows // DEGREE)

    @property
    def secrets(self) -> int:
        return self.columns if self.transposed else self.blocks

    @property
    def masks(self) -> int:
        return self.blocks if self.transposed else self.columns

    @property
    def results(self) -> int:
        """Rows of the product."""
        return self.columns if self.transposed else self.rows

    @property
    def terms(self) -> int:
        """Products in each result: rows of V."""
        return self.rows if self.transposed else self.columns

    @property
    def tail_words(self) -> int:
        """Words of the packed tails."""
        return -(-self.outputs * self.results * TAIL_BITS // 64)

    def operand_spec(self) -> Spec:
        """Enc(U) and one key for each secret."""
        return (ArraySpec("operand", _WORD, (self.secrets, self.masks + 1, BODY_WORDS)),)

    def response_spec(self) -> Spec:
        """c1 and c0, each in high words and tails."""
        return (
            ArraySpec("c1", _WORD, (self.outputs, DEGREE)),
            ArraySpec("c1.tail", "<u2", (self.outputs, DEGREE)),
            ArraySpec("c0", _WORD, (self.outputs, self.results)),
            ArraySpec("c0.tail", _WORD, (self.tail_words,)),
        )

    @property
    def operand_bytes(self) -> int:
        """Bytes of Enc(U), without Arrow's framing."""
        return sum(each.nbytes for each in self.operand_spec())

    @property
    def response_bytes(self) -> int:
        """Bytes of a response, without Arrow's framing."""
        return sum(each.nbytes for each in self.response_spec())
