"""One party's run of a program of products (`product_programs`): its variables, the bits it sends, its shares."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from veilmeans.crypto.ot.kinds.product_programs import Polynomial, Program, Step
from veilmeans.crypto.ot.ot_arrays import OtRequest, OtSide
from veilmeans.schemas.arrays import Array

_ZERO: Array = np.zeros(1, np.uint64)


def requests_of(program: Program, words: int) -> list[OtRequest]:
    """The OTs of a program over planes of `words` words, one request for each step."""
    return [OtRequest(step.chooser, 64 * words, len(step.entries), "planes") for step in program.steps]


@dataclass(frozen=True)
class ProductRun:
    """A program at party `party`; `variables` has the party's own bits, variables × words."""

    program: Program
    party: int
    sides: Sequence[OtSide]
    variables: Array

    @classmethod
    def begin(cls, program: Program, party: int, sides: Sequence[OtSide], variables: Array) -> "ProductRun":
        """Give the variables the values that the OTs determine; the others keep theirs, which must be uniform."""
        values = variables.copy()
        for step, side in zip(program.steps, sides, strict=True):
            if step.chooser == party:
                values[step.variable] = side.second
            else:
                for entry, variable in step.free.items():
                    values[variable] = side.second[entry]
        return cls(program, party, sides, values)

    def bits_to_send(self) -> Array:
        """y ⊕ m_0 ⊕ m_1 of each entry that is not free, rows × words."""
        _, sent = self._run(None)
        return np.stack(sent) if sent else np.empty((0, self.variables.shape[1]), np.uint64)

    def received_rows(self) -> int:
        """Rows of bits that this party receives."""
        steps = (step for step in self.program.steps if step.chooser == self.party)
        return sum(len(step.entries) - len(step.free) for step in steps)

    def shares(self, received: Array) -> Array:
        """This party's shares of the outputs, outputs × words."""
        functions, _ = self._run(received)
        shares = np.empty((len(self.program.outputs), self.variables.shape[1]), np.uint64)
        for share, (numbers, own) in zip(shares, self.program.outputs, strict=True):
            total = add(self._evaluate(own[self.party]), *(functions[f] for f in numbers))
            if total is None:
                raise ValueError("a share depends on bits that were not received")
            share[:] = total
        return shares

    def _run(self, received: Array | None) -> tuple[list[Array | None], list[Array]]:
        """Return the shares of the functions after the last step (None: not known yet), and the bits to send."""
        functions: list[Array | None] = []
        sent: list[Array] = []
        rows = None if received is None else iter(received)
        for step, side in zip(self.program.steps, self.sides, strict=True):
            if step.chooser == self.party:
                products = self._choose(step, side, functions, rows)
            else:
                sent += self._offer(step, side, functions)
                products = list(side.first)
            functions = [
                add(*(functions[f] for f in before), *(products[e] for e in entries))
                for before, entries in step.functions
            ]
        return functions, sent

    def _choose(
        self, step: Step, side: OtSide, functions: Sequence[Array | None], rows: Iterable[Array] | None
    ) -> list[Array | None]:
        """This party's shares of v·f¹ for its own v."""
        products: list[Array | None] = []
        for number, (numbers, _) in enumerate(step.entries):
            share = add(*(functions[f] for f in numbers))
            if number not in step.free:
                bits = None if rows is None else next(iter(rows))
                share = add(share, bits)
            products.append(None if share is None else side.first[number] ^ (side.second & share))
        return products

    def _offer(self, step: Step, side: OtSide, functions: Sequence[Array | None]) -> list[Array]:
        """The bits to send for the other party's v."""
        sent = []
        for number, (numbers, own) in enumerate(step.entries):
            if number not in step.free:
                bits = add(side.second[number], self._evaluate(own), *(functions[f] for f in numbers))
                if bits is None:
                    raise ValueError("a bit to send depends on a received one")
                sent.append(bits)
        return sent

    def _evaluate(self, polynomial: Polynomial) -> Array:
        """A polynomial of this party's own variables."""
        total: Array = np.zeros(self.variables.shape[1], np.uint64)
        for term in polynomial:
            chosen = [self.variables[v] for v in range(term[self.party].bit_length()) if term[self.party] >> v & 1]
            total ^= reduce(np.bitwise_and, chosen)
        return total


def add(*shares: Array | None) -> Array | None:
    """⊕ of shares; None if one is not known yet."""
    known = [share for share in shares if share is not None]
    return reduce(np.bitwise_xor, known, _ZERO) if len(known) == len(shares) else None
