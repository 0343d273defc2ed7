"""The protocol stages of a K-means job and what each waits for: the graph that plan and report show.

A step is a `Protocol` of one or more rounds. The stages of its rounds are called step.round in messages and metrics.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import lcm
from typing import Literal

import numpy as np
from scipy.sparse import csr_array

from veilmeans.crypto import bits, ring
from veilmeans.crypto.he.product_parameters import HEProductParameters
from veilmeans.schemas.layout import Layout, ShardShape, column_slices
from veilmeans.transforms.kmeans.centroid_update import CentroidUpdate, finish, norms, quotient
from veilmeans.transforms.kmeans.cluster_sums import update
from veilmeans.transforms.kmeans.distance import distance
from veilmeans.transforms.offline.requirements import PERIOD, Over, StepShapes, StoreRequirements
from veilmeans.transforms.primitives.argmin_tree import ArgminTree, argmin
from veilmeans.transforms.primitives.divide import reciprocal
from veilmeans.transforms.products.cross_product import mask_operand, shape_to_state
from veilmeans.transforms.products.engine_parameters import EngineParameters
from veilmeans.transforms.products.he_product import (
    ColumnShardProducts,
    ciphertext_names,
    csr_to_state,
    encrypt_centroids,
    unmask,
)
from veilmeans.transforms.rounds.protocol import Protocol
from veilmeans.transforms.rounds.trace import Shapes

When = Literal["once", "iteration", "end"]


@dataclass(frozen=True)
class Step:
    """What it computes, its part of the paper's figure (S1, S2, S3; empty beside them), and the steps before it."""

    name: str
    does: str
    phase: str
    over: Over
    when: When
    after: tuple[str, ...] = ()


_STEPS = (
    Step("extremes", "lowest and highest of each column", "", Over.ONE, "once"),
    Step("moments", "sums and squares of each column", "", Over.ONE, "once"),
    Step("operand", "X − U to the others", "", Over.ROWS, "once", ("extremes", "moments")),
    Step("norms", "⟨|μ|²⟩ of the start", "", Over.COLUMNS, "once", ("operand",)),
    Step("encrypt", "Enc(⟨μ⟩) to the owners", "S1", Over.COLUMNS, "iteration", ("norms",)),
    Step("distance", "⟨D'⟩ = ⟨|μ|²⟩ − 2·X·⟨μ⟩ᵀ", "S1", Over.ROWS, "iteration", ("operand", "norms", "encrypt")),
    Step("assign", "[C] = argmin ⟨D'⟩ of each row", "S2", Over.ROWS, "iteration", ("distance",)),
    Step("update", "⟨CᵀX⟩ and the counts", "S3", Over.ROWS, "iteration", ("assign",)),
    Step("reciprocal", "1/⟨n⟩ of the counts", "S3", Over.ONE, "iteration", ("update",)),
    Step("unmask", "⟨CᵀX⟩ out of ciphertexts", "S3", Over.COLUMNS, "iteration", ("update",)),
    Step("quotient", "⟨μ⟩ = ⟨CᵀX⟩ / ⟨n⟩", "S3", Over.COLUMNS, "iteration", ("update", "reciprocal", "unmask")),
    Step("finish", "stop bit, inertia, checkpoint", "S3", Over.ONE, "iteration", ("quotient",)),
    Step("reveal-assignments", "clusters, to whom they are due", "", Over.ROWS, "end", ("assign", "finish")),
    Step("reveal-centres", "centroids, inertia, to whom they are due", "", Over.ONE, "end", ("finish",)),
)
"""All that can be, in the order in which it runs."""
_TRAINING = {"norms", "update", "reciprocal", "unmask", "quotient", "finish"}
"""What a prediction does not do."""


def step_of(stage: str) -> str:
    """Of which step a stage is: "assign.03.choose", or "reveal-centres-3f….00.centres" with its policy's digest."""
    name = stage.split(".")[0]
    return next((step.name for step in _STEPS if name == step.name or name.startswith(f"{step.name}-")), name)


@dataclass(frozen=True)
class KMeansSteps:
    """What the protocols of one job depend on; known to all parties and the dealer. `predicts`: it only assigns."""

    layout: Layout
    k: int
    tree: ArgminTree
    work: CentroidUpdate
    columns_per_shard: int
    engines: EngineParameters
    predicts: bool = False

    @property
    def column_shards(self) -> list[slice]:
        """The d columns as the work on centroids is cut, whoever owns them."""
        return column_slices(self.layout.total_features, self.columns_per_shard)

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
        return (
            encrypt_centroids(ColumnShardProducts(self.layout, self.engines.distance))
            if any(self.engines.distance)
            else None
        )

    @property
    def unmask(self) -> Protocol | None:
        """After the sums of all shards."""
        wide = self.k > 1 and any(self.engines.update) and not self.predicts
        return unmask(ColumnShardProducts(self.layout, self.engines.update)) if wide else None

    @property
    def assign(self) -> Protocol:
        return argmin(self.tree, self.k, self.layout.parties).named("assign")

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

    def plan(self, extra: tuple[StepShapes, ...] = ()) -> StoreRequirements:
        """What all of it asks of the triple store; `extra` is work besides."""
        ciphers = [protocol for protocol in (self.encrypt, self.unmask) if protocol is not None]
        masked = [StepShapes(self.operand, self._operand_shapes, first=True)] if self.engines.masked else []
        groups = [product.group for product in self.engines.distance if product is not None]
        works = (
            *masked,
            StepShapes(self.distance, self._distance_shapes, period=lcm(PERIOD, *groups)),
            StepShapes(self.assign, self._assign_shapes),
            *(() if self.predicts else self._centre_works()),
            *(StepShapes(protocol, self._wide_shapes, Over.COLUMNS) for protocol in ciphers),
            *extra,
        )
        columns = tuple(
            ShardShape(self.k, (each.stop - each.start,), each.start if ciphers else 0) for each in self.column_shards
        )
        return StoreRequirements(works, tuple(place.block for place in self.layout.row_shards()), columns)

    def _centre_works(self) -> tuple[StepShapes, ...]:
        """From assignments to new centroids, and the norms of the first."""
        return (
            StepShapes(self.update, self._update_shapes),
            StepShapes(self.norms, self._quotient_shapes, Over.COLUMNS, first=True),
            StepShapes(self.reciprocal, self._single_shapes, Over.ONE),
            StepShapes(self.quotient, self._quotient_shapes, Over.COLUMNS),
            StepShapes(self.finish, self._single_shapes, Over.ONE),
        )

    def _operand_shapes(self, block: ShardShape) -> Sequence[Shapes]:
        dense: Sequence[Shapes] = [{"x": ((block.rows, width), "uint64")} for width in block.widths]
        return [{**own, **shape_to_state(block)} for own in dense]

    def _with_operands(
        self, block: ShardShape, shapes: Shapes, engines: Sequence[HEProductParameters | None]
    ) -> Sequence[Shapes]:
        """The same for each party, beside its own matrix and the masked ones of others."""
        dense: list[tuple[tuple[int, ...], str]] = [((block.rows, width), "uint64") for width in block.widths]
        empty = csr_to_state(csr_array((block.rows, 0), dtype=ring.DTYPE))
        masked = {i: dense[i] for i, engine in enumerate(engines) if engine is None}
        return [
            {
                **shapes,
                **shape_to_state(block),
                **({"x": dense[i]} if engine is None else empty),
                **{f"e{owner}": matrix for owner, matrix in masked.items() if owner != i},
            }
            for i, engine in enumerate(engines)
        ]

    def _distance_shapes(self, block: ShardShape) -> Sequence[Shapes]:
        k, d = self.k, self.layout.total_features
        return self._with_operands(block, {"mu": ((k, d), "uint64"), "u": ((k,), "uint64")}, self.engines.distance)

    def _assign_shapes(self, block: ShardShape) -> Sequence[Shapes]:
        return [{"d": ((self.k, block.rows), "uint64")}] * self.layout.parties

    def _update_shapes(self, block: ShardShape) -> Sequence[Shapes]:
        shapes: Shapes = {"c": ((self.k, bits.padded(block.rows) // 8), "uint8")}
        return self._with_operands(block, shapes, self.engines.update)

    def _wide_shapes(self, block: ShardShape) -> Sequence[Shapes]:
        (width,) = block.widths
        shapes: Shapes = {
            "columns": np.array([block.start, block.start + width]),
            **dict.fromkeys(("mu", "s"), ((block.rows, width), "uint64")),
        }
        nothing = {name: np.zeros((0, 1), np.int64) for i in range(self.layout.parties) for name in ciphertext_names(i)}
        return [{**shapes, **nothing}] * self.layout.parties

    def _quotient_shapes(self, block: ShardShape) -> Sequence[Shapes]:
        shapes: Shapes = {
            **dict.fromkeys(("mu", "s"), ((block.rows, *block.widths), "uint64")),
            **dict.fromkeys(("v", "y", "empty"), ((block.rows,), "uint64")),
        }
        return [shapes] * self.layout.parties

    def _single_shapes(self, block: ShardShape) -> Sequence[Shapes]:
        del block
        shapes: Shapes = {
            **dict.fromkeys(("n", "u"), ((self.k,), "uint64")),
            **dict.fromkeys(("esd", "x2"), ((1,), "uint64")),
        }
        return [shapes] * self.layout.parties


def steps_of(kmeans: KMeansSteps, statistics: str | None = None, opened: Collection[str] = ()) -> tuple[Step, ...]:
    """The steps of a job. `statistics`: what is aggregated before it (extremes or moments); `opened`: at its end."""
    absent = {"extremes", "moments", "reveal-assignments", "reveal-centres"} - {statistics, *opened}
    absent |= set() if kmeans.engines.masked else {"operand"}
    absent |= {name for name in ("encrypt", "unmask") if getattr(kmeans, name) is None}
    absent |= _TRAINING if kmeans.predicts else set()
    present = [step for step in _STEPS if step.name not in absent]
    names = {step.name for step in present}
    return tuple(
        replace(
            step,
            when="once" if kmeans.predicts and step.when == "iteration" else step.when,
            after=tuple(name for name in step.after if name in names),
        )
        for step in present
    )
