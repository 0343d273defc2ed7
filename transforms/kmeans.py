"""The paper's privacy-preserving K-means as protocols, from public parameters alone.

once            X − U to the others (`cross`); |μ_j|² of the start (`centres.norms`)
each iteration  [encrypt over shards of columns] →
                distance (S1, F_ESD') → assign (S2, F_min^k) → update (S3, F_SCU) over shards of rows, and their sums →
                [unmask over shards of columns] →
                reciprocal of the counts, quotient (F_SCU's division) over shards of columns, finish (F_CSC)

What is in brackets is there where an owner's product is homomorphic (`sparse`). A prediction has operands, [encrypt],
distance and assign, once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from veilmeans.crypto import bits, ring
from veilmeans.crypto.sparse_product import SparseProduct
from veilmeans.schemas.layout import Block, Layout, cut_columns
from veilmeans.transforms.centres import Centres, finish, norms, quotient
from veilmeans.transforms.cross import block_state, mask_operand
from veilmeans.transforms.distance import distance
from veilmeans.transforms.divide import reciprocal
from veilmeans.transforms.engines import Engines
from veilmeans.transforms.minimum import Tree, minimum
from veilmeans.transforms.plan import Over, Plan, Work
from veilmeans.transforms.rounds import Protocol
from veilmeans.transforms.sparse import Wide, encrypt_centres, found_names, sparse_state, unmask
from veilmeans.transforms.trace import Shapes
from veilmeans.transforms.update import update


@dataclass(frozen=True)
class KMeans:
    """What the protocols of one job depend on; known to all parties and the dealer. `predicts`: it only assigns."""

    layout: Layout
    k: int
    tree: Tree
    work: Centres
    columns_per_shard: int
    engines: Engines
    predicts: bool = False

    @property
    def column_shards(self) -> list[slice]:
        """The d columns as the work on centroids is cut, whoever owns them."""
        return cut_columns(self.layout.total_features, self.columns_per_shard)

    @property
    def operand(self) -> Protocol:
        return mask_operand(self.engines.masked)

    @property
    def norms(self) -> Protocol:
        return norms()

    @property
    def distance(self) -> Protocol:
        return distance(self.engines.distance)

    @property
    def encrypt(self) -> Protocol | None:
        """Before the distances."""
        return encrypt_centres(Wide(self.layout, self.engines.distance)) if any(self.engines.distance) else None

    @property
    def unmask(self) -> Protocol | None:
        """After the sums of all shards."""
        wide = self.k > 1 and any(self.engines.update) and not self.predicts
        return unmask(Wide(self.layout, self.engines.update)) if wide else None

    @property
    def assign(self) -> Protocol:
        return minimum(self.tree, self.k, self.layout.parties).named("assign")

    @property
    def update(self) -> Protocol:
        return update(self.k, self.engines.update)

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
        ciphers = [protocol for protocol in (self.encrypt, self.unmask) if protocol is not None]
        masked = [Work(self.operand, self._operand_shapes, first=True)] if self.engines.masked else []
        works = (
            *masked,
            Work(self.distance, self._distance_shapes),
            Work(self.assign, self._assign_shapes),
            *(() if self.predicts else self._centre_works()),
            *(Work(protocol, self._wide_shapes, Over.COLUMNS) for protocol in ciphers),
            *extra,
        )
        columns = tuple(
            Block(self.k, (each.stop - each.start,), each.start if ciphers else 0) for each in self.column_shards
        )
        return Plan(works, tuple(place.block for place in self.layout.places()), columns)

    def _centre_works(self) -> tuple[Work, ...]:
        """From assignments to new centroids, and the norms of the first."""
        return (
            Work(self.update, self._update_shapes),
            Work(self.norms, self._quotient_shapes, Over.COLUMNS, first=True),
            Work(self.reciprocal, self._single_shapes, Over.ONE),
            Work(self.quotient, self._quotient_shapes, Over.COLUMNS),
            Work(self.finish, self._single_shapes, Over.ONE),
        )

    def _operand_shapes(self, block: Block) -> Sequence[Shapes]:
        dense: Sequence[Shapes] = [{"x": ((block.rows, width), "uint64")} for width in block.widths]
        return [{**own, **block_state(block)} for own in dense]

    def _with_operands(self, block: Block, shapes: Shapes, engines: Sequence[SparseProduct | None]) -> Sequence[Shapes]:
        """The same for each party, beside its own matrix and the masked ones of others."""
        dense: list[tuple[tuple[int, ...], str]] = [((block.rows, width), "uint64") for width in block.widths]
        empty = sparse_state(csr_array((block.rows, 0), dtype=ring.DTYPE))
        masked = {i: dense[i] for i, engine in enumerate(engines) if engine is None}
        return [
            {
                **shapes,
                **block_state(block),
                **({"x": dense[i]} if engine is None else empty),
                **{f"e{owner}": matrix for owner, matrix in masked.items() if owner != i},
            }
            for i, engine in enumerate(engines)
        ]

    def _distance_shapes(self, block: Block) -> Sequence[Shapes]:
        k, d = self.k, self.layout.total_features
        return self._with_operands(block, {"mu": ((k, d), "uint64"), "u": ((k,), "uint64")}, self.engines.distance)

    def _assign_shapes(self, block: Block) -> Sequence[Shapes]:
        return [{"d": ((self.k, block.rows), "uint64")}] * self.layout.parties

    def _update_shapes(self, block: Block) -> Sequence[Shapes]:
        shapes: Shapes = {"c": ((self.k, bits.padded(block.rows) // 8), "uint8")}
        return self._with_operands(block, shapes, self.engines.update)

    def _wide_shapes(self, block: Block) -> Sequence[Shapes]:
        (width,) = block.widths
        shapes: Shapes = {
            "columns": np.array([block.start, block.start + width]),
            **dict.fromkeys(("mu", "s"), ((block.rows, width), "uint64")),
        }
        nothing = {name: np.zeros((0, 1), np.int64) for i in range(self.layout.parties) for name in found_names(i)}
        return [{**shapes, **nothing}] * self.layout.parties

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
