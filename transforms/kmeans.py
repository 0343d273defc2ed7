"""The paper's privacy-preserving K-means as protocols, from public parameters alone.

once            X − U to the others (`cross`); |μ_j|² of the start (`centres.norms`)
each iteration  distance (S1, F_ESD') → assign (S2, F_min^k) → update (S3, F_SCU) over shards of rows, and their sums;
                reciprocal of the counts, quotient (F_SCU's division) over shards of columns, finish (F_CSC)
"""

from collections.abc import Sequence
from dataclasses import dataclass

from veilmeans.crypto import bits
from veilmeans.schemas.layout import Block, Layout, cut_columns
from veilmeans.transforms.centres import Centres, finish, norms, quotient
from veilmeans.transforms.cross import mask_operand
from veilmeans.transforms.distance import distance
from veilmeans.transforms.divide import reciprocal
from veilmeans.transforms.minimum import Tree, minimum
from veilmeans.transforms.plan import Over, Plan, Work
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
    columns_per_shard: int

    @property
    def column_shards(self) -> list[slice]:
        """The d columns as the work on centroids is cut, whoever owns them."""
        return cut_columns(self.layout.total_features, self.columns_per_shard)

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
    def reciprocal(self) -> Protocol:
        return reciprocal(self.work.division, self.layout.parties)

    @property
    def quotient(self) -> Protocol:
        return quotient(self.work)

    @property
    def finish(self) -> Protocol:
        return finish(self.work, self.layout.parties)

    def plan(self, extra: tuple[Work, ...] = ()) -> Plan:
        """What all of it asks of the triple store; `extra` is work besides."""
        works = (
            Work(self.operand, self._operand_shapes, first=True),
            Work(self.distance, self._distance_shapes),
            Work(self.assign, self._assign_shapes),
            Work(self.update, self._update_shapes),
            Work(self.norms, self._quotient_shapes, Over.COLUMNS, first=True),
            Work(self.reciprocal, self._single_shapes, Over.ONE),
            Work(self.quotient, self._quotient_shapes, Over.COLUMNS),
            Work(self.finish, self._single_shapes, Over.ONE),
            *extra,
        )
        columns = tuple(Block(self.k, (each.stop - each.start,)) for each in self.column_shards)
        return Plan(works, tuple(place.block for place in self.layout.places()), columns)

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

    def _quotient_shapes(self, block: Block) -> Sequence[Shapes]:
        shapes: Shapes = {
            **dict.fromkeys(("mu", "s"), ((block.rows, *block.widths), "uint64")),
            **dict.fromkeys(("v", "y", "empty"), ((block.rows,), "uint64")),
        }
        return [shapes] * self.layout.parties

    def _single_shapes(self, block: Block) -> Sequence[Shapes]:
        del block
        shapes: Shapes = {
            **dict.fromkeys(("n", "u"), ((self.k,), "uint64")),
            **dict.fromkeys(("esd", "x2"), ((1,), "uint64")),
        }
        return [shapes] * self.layout.parties
