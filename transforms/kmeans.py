"""The paper's privacy-preserving K-means as protocols, from public parameters alone.

once            X − U to the others (`cross`); |μ_j|² of the start (`centres.norms`)
each iteration  distance (S1, F_ESD') → assign (S2, F_min^k) → update (S3, F_SCU) over shards of rows,
                sums over the shards, then centres (F_SCU's division, F_CSC) on k × d values
"""

from collections.abc import Sequence
from dataclasses import dataclass

from veilmeans.crypto import bits
from veilmeans.schemas.layout import Block, Layout
from veilmeans.transforms.centres import Centres, centres, norms
from veilmeans.transforms.cross import mask_operand
from veilmeans.transforms.distance import distance
from veilmeans.transforms.minimum import Tree, minimum
from veilmeans.transforms.plan import Plan, Work
from veilmeans.transforms.rounds import Protocol
from veilmeans.transforms.trace import Shapes
from veilmeans.transforms.update import update


@dataclass(frozen=True)
class KMeans:
    """What the protocols of one job depend on; known to all parties and the dealer."""

    layout: Layout
    k: int
    tree: Tree
    work: Centres

    @property
    def operand(self) -> Protocol:
        return mask_operand()

    @property
    def norms(self) -> Protocol:
        return norms()

    @property
    def distance(self) -> Protocol:
        return distance()

    @property
    def assign(self) -> Protocol:
        return minimum(self.tree, self.k, self.layout.parties).named("assign")

    @property
    def update(self) -> Protocol:
        return update(self.k)

    @property
    def centres(self) -> Protocol:
        return centres(self.work, self.layout.parties)

    def plan(self, extra: tuple[Work, ...] = ()) -> Plan:
        """What all of it asks of the triple store; `extra` is work besides."""
        works = (
            Work(self.operand, self._operand_shapes, first=True),
            Work(self.distance, self._distance_shapes),
            Work(self.assign, self._assign_shapes),
            Work(self.update, self._update_shapes),
            Work(self.norms, self._centre_shapes, sharded=False, first=True),
            Work(self.centres, self._centre_shapes, sharded=False),
            *extra,
        )
        return Plan(works, tuple(place.block for place in self.layout.places()))

    def _operand_shapes(self, block: Block) -> Sequence[Shapes]:
        return [{"x": ((block.rows, width), "uint64")} for width in block.widths]

    def _with_operands(self, block: Block, shapes: Shapes) -> Sequence[Shapes]:
        """The same for each party, beside its own matrix and the others' masked ones."""
        matrices = [((block.rows, width), "uint64") for width in block.widths]
        return [
            {**shapes, "x": matrix, **{f"e{i}": other for i, other in enumerate(matrices) if i != party}}
            for party, matrix in enumerate(matrices)
        ]

    def _distance_shapes(self, block: Block) -> Sequence[Shapes]:
        k, d = self.k, self.layout.total_features
        return self._with_operands(block, {"mu": ((k, d), "uint64"), "u": ((k,), "uint64")})

    def _assign_shapes(self, block: Block) -> Sequence[Shapes]:
        return [{"d": ((self.k, block.rows), "uint64")}] * self.layout.parties

    def _update_shapes(self, block: Block) -> Sequence[Shapes]:
        return self._with_operands(block, {"c": ((self.k, bits.padded(block.rows) // 8), "uint8")})

    def _centre_shapes(self, block: Block) -> Sequence[Shapes]:
        del block
        table = ((self.k, self.layout.total_features), "uint64")
        shapes: Shapes = {"mu": table, "s": table, "n": ((self.k,), "uint64"), "x2": ((1,), "uint64")}
        return [shapes] * self.layout.parties
