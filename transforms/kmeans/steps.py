"""The steps of K-means: protocol, what it computes, and phase in the paper, from public parameters alone.

Which steps run, in which order and over what is said once, in `transforms.kmeans.iteration`.
"""

import re
from dataclasses import dataclass

from veilmeans.schemas.layout import Layout, column_slices
from veilmeans.transforms.kmeans.centroid_update import CentroidUpdate, finish, norms, quotient
from veilmeans.transforms.kmeans.cluster_sums import update
from veilmeans.transforms.kmeans.distance import distance
from veilmeans.transforms.primitives.argmin_tree import ArgminTree, argmin
from veilmeans.transforms.primitives.divide import reciprocal
from veilmeans.transforms.products.cross_product import mask_operand
from veilmeans.transforms.products.engine_parameters import EngineParameters
from veilmeans.transforms.products.he_product import ColumnShardProducts, encrypt_centroids, unmask
from veilmeans.transforms.rounds.executor import Step


@dataclass(frozen=True)
class KMeansSteps:
    """The public parameters of one job, known to all parties and the dealer, and the steps that follow from them.

    `predicts`: rows are only assigned.
    """

    layout: Layout
    k: int
    tree: ArgminTree
    centroid_update: CentroidUpdate
    columns_per_shard: int
    engines: EngineParameters
    predicts: bool = False

    @property
    def column_shards(self) -> list[slice]:
        """The d columns as the work on centroids is cut, whoever owns them."""
        return column_slices(self.layout.total_features, self.columns_per_shard)

    @property
    def operand(self) -> Step | None:
        if not self.engines.masked:
            return None
        return Step(mask_operand(self.engines.masked), "X − U to the others")

    @property
    def norms(self) -> Step:
        return Step(norms(), "⟨|μ|²⟩ of the first centroids")

    @property
    def encrypt(self) -> Step | None:
        if not any(self.engines.distance):
            return None
        products = ColumnShardProducts(self.layout, self.engines.distance)
        return Step(encrypt_centroids(products), "Enc(⟨μ⟩) to the owners", "S1")

    @property
    def distance(self) -> Step:
        return Step(distance(self.engines.distance), "⟨D'⟩ = ⟨|μ|²⟩ − 2·X·⟨μ⟩ᵀ", "S1")

    @property
    def assign(self) -> Step:
        protocol = argmin(self.tree, self.k, self.layout.parties).named("assign")
        return Step(protocol, "[C] = argmin ⟨D'⟩ of each row", "S2")

    @property
    def update(self) -> Step:
        return Step(update(self.k, self.engines.update), "⟨CᵀX⟩ and the counts", "S3")

    @property
    def reciprocal(self) -> Step:
        return Step(reciprocal(self.centroid_update.division, self.layout.parties), "1/⟨n⟩ of the counts", "S3")

    @property
    def unmask(self) -> Step | None:
        if self.k == 1 or not any(self.engines.update):
            return None
        products = ColumnShardProducts(self.layout, self.engines.update)
        return Step(unmask(products), "⟨CᵀX⟩ out of ciphertexts", "S3")

    @property
    def quotient(self) -> Step:
        return Step(quotient(self.centroid_update), "⟨μ⟩ = ⟨CᵀX⟩ / ⟨n⟩", "S3")

    @property
    def finish(self) -> Step:
        return Step(finish(self.centroid_update, self.layout.parties), "stop bit, inertia, checkpoint", "S3")


_POLICY_DIGEST = re.compile(r"-[0-9a-f]{12}$")


def step_name(stage: str) -> str:
    """The step of a stage: of "assign.03.choose" it is "assign"; an opening's policy digest is left out."""
    return _POLICY_DIGEST.sub("", stage.split(".")[0])
