"""The steps of K-means: protocol, what it computes, and phase in the paper, from public parameters alone.

Which steps run, in which order and over what is said once, in `transforms.kmeans.iteration`.
"""

import re
from dataclasses import dataclass, field, replace
from functools import partial

from veilmeans.schemas.layout import Layout, column_slices
from veilmeans.transforms.kmeans.centroid_update import CentroidUpdate, inertia, norms, squared_norms, stop
from veilmeans.transforms.kmeans.cluster_sums import convert, group_starts, update
from veilmeans.transforms.kmeans.distance import add_norms, distance
from veilmeans.transforms.kmeans.kmeans_plus_plus import Seeding
from veilmeans.transforms.primitives.argmin import Argmin, argmin
from veilmeans.transforms.primitives.best_start import choose_best, take_best, take_counts
from veilmeans.transforms.primitives.divide import numerator, quotient, refine, scale
from veilmeans.transforms.products.cross_product import mask_operand
from veilmeans.transforms.products.engine_parameters import EngineParameters
from veilmeans.transforms.products.he_product import ColumnShardProducts, encrypt_centroids, unmask
from veilmeans.transforms.rounds.executor import Step
from veilmeans.transforms.rounds.protocol import Protocol
from veilmeans.transforms.statistics.explanations import Explanations
from veilmeans.transforms.statistics.outliers import Outliers, keep_distances, score, weigh
from veilmeans.transforms.statistics.profiles import Profiles
from veilmeans.transforms.statistics.small_clusters import SmallClusters, keep_open, open_centroids


@dataclass(frozen=True)
class KMeansSteps:
    """The public parameters of one job, known to all parties and the dealer, and the steps that follow from them.

    `predicts`: rows are only assigned. `seeding`: the first centroids are chosen by k-means++. `final_assignment`: rows
    are assigned once more after the last iteration, as `last_assignment` says. `prefix`: of the steps' names, where one
    runs in iterations and after them (`last`). `starts`: their iterations run in the same messages, and the best is
    chosen after the last one; `last_engines`: those of the one that is left. `scores`: may be opened, of the last steps
    or of a prediction; `outliers`: how they are found there; `explanations`: how they are explained. `profiles`: of the
    final clusters. `minimum`: clusters with fewer rows stay closed; 0: none do.
    """

    layout: Layout
    k: int
    assignment: Argmin
    centroid_update: CentroidUpdate
    columns_per_shard: int
    engines: EngineParameters
    predicts: bool = False
    seeding: Seeding | None = None
    final_assignment: bool = False
    prefix: str = ""
    starts: int = 1
    last_engines: EngineParameters | None = None
    last_assignment: Argmin | None = None
    scores: bool = False
    outliers: Outliers | None = None
    explanations: Explanations | None = None
    profiles: Profiles | None = None
    minimum: int = field(default=0, metadata={"optional": True})

    @property
    def all_clusters(self) -> int:
        """The clusters of all starts."""
        return self.starts * self.k

    @property
    def last(self) -> "KMeansSteps":
        """The steps after the last iteration, under names of their own."""
        update, engines = replace(self.centroid_update, tol=0), self.last_engines or self.engines
        assignment = self.last_assignment or self.assignment
        return replace(self, prefix="last-", assignment=assignment, centroid_update=update, starts=1, engines=engines)

    def _named(self, protocol: Protocol) -> Protocol:
        return protocol.named(f"{self.prefix}{protocol.name}")

    @property
    def measures(self) -> bool:
        """True if the assignment also computes each row's distance to its own centroid."""
        return ((self.scores or self.outliers is not None) and self.is_last) or self.trims

    @property
    def shows(self) -> bool:
        """True if the assignment also rounds scores, so that some can be opened."""
        return self.is_last and (self.scores or (self.explanations is not None and self.explanations.others))

    @property
    def is_last(self) -> bool:
        """True of a prediction's steps, and of those after the last iteration."""
        return self.predicts or bool(self.prefix)

    @property
    def trims(self) -> bool:
        """True if outliers do not move the centroids of an iteration."""
        return not self.is_last and self.outliers is not None and self.outliers.during_training

    @property
    def ends_with_more(self) -> bool:
        """True if something follows the last iteration."""
        return not self.predicts and (self.final_assignment or self.centroid_update.inertia or self.closes)

    @property
    def closes(self) -> bool:
        """True if clusters with few rows stay closed; a single cluster has all rows."""
        return self.minimum > 0 and self.k > 1

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
    def encrypt(self) -> Step | None:
        if not any(self.engines.distance):
            return None
        products = ColumnShardProducts(self.layout, self.engines.distance)
        return Step(self._named(encrypt_centroids(products)), "Enc(⟨μ⟩) to the owners", "S1")

    @property
    def distance(self) -> Step:
        return Step(self._named(distance(self.engines.distance)), "⟨D'⟩ − ⟨|μ|²⟩ = −2·X·⟨μ⟩ᵀ", "S1")

    @property
    def norms(self) -> Step:
        moved = " and how far it has moved" if self.centroid_update.threshold else ""
        return Step(self._named(norms(self.centroid_update)), f"⟨|μ|²⟩{moved}", "S1")

    @property
    def assign(self) -> Step:
        """An iteration also converts the assignments to shares by sum, unless outliers are left out first."""
        protocol = argmin(self.assignment, self.k, self.layout.parties)
        if self.starts > 1:
            protocol = protocol.after(partial(group_starts, self.starts))
        if self.measures:
            protocol = protocol.after(keep_distances) + score(self.k, self.shows)
        protocol = protocol.after(add_norms)
        if self.is_last or self.trims:
            computes = "[C] = argmin ⟨D'⟩ of each row" + ", ⟨|x − μ|²⟩" * self.measures
            return Step(self._named(protocol.named("assign")), computes, "S2")
        protocol += convert(self.k, self.starts)
        return Step(protocol.named("assign"), "[C] = argmin ⟨D'⟩ of each row, ⟨C⟩, ⟨n⟩", "S2")

    @property
    def stop(self) -> Step | None:
        """The stop bit of the iteration before; None without a tolerance."""
        if not self.centroid_update.threshold:
            return None
        return Step(stop(self.centroid_update, self.layout.parties), "stop bit of the iteration before", "S2")

    @property
    def weigh(self) -> Step:
        return Step(weigh(self.k), "⟨C⟩, ⟨n⟩ without outliers", "S2")

    def explain(self, how: Explanations) -> tuple[Step, Step, Step]:
        """The steps of explanations: over rows, once, and over column shards."""
        clusters = how.clusters(self.layout.parties, self.closes)
        return (
            Step(self._named(how.rows()), "[C], ⟨|x − μ|²⟩ of outliers, and how many they are"),
            Step(
                self._named(clusters), f"⟨has⟩, the clusters that have an outlier{' and may be opened' * self.closes}"
            ),
            Step(self._named(how.centroids(self.closes)), "⟨has·μ⟩"),
        )

    def profile(self, profiles: Profiles) -> Step:
        return Step(self._named(profiles.rows()), "⟨n⟩, ⟨CᵀP⟩, P: values, squares and labels of those who get profiles")

    @property
    def small_clusters(self) -> SmallClusters | None:
        """The clusters whose sums are not opened in profiles, if they may be fewer than all."""
        if self.profiles is None or self.k == 1 or (self.profiles.least == 1 and not self.closes):
            return None
        return SmallClusters(self.k, self.profiles.least, self.centroid_update.count_bits)

    def hide(self, small: SmallClusters) -> Step:
        what = "⟨n⟩, ⟨CᵀP⟩, 0 of clusters with few rows" if self.closes else "⟨CᵀP⟩, 0 of clusters with few rows"
        return Step(self._named(small.hide(self.layout.parties, self.closes)), what)

    @property
    def keep_open(self) -> Step:
        small = SmallClusters(self.k, self.minimum, self.centroid_update.count_bits)
        return Step(
            self._named(keep_open(self.layout.parties, small)), "⟨open⟩, the clusters whose centroids may be opened"
        )

    @property
    def open_centroids(self) -> Step:
        return Step(self._named(open_centroids()), "⟨open·μ⟩")

    @property
    def update(self) -> Step:
        return Step(update(self.k, self.engines.update, self.starts, all_clusters=self.trims), "⟨CᵀX⟩", "S3")

    @property
    def scale(self) -> Step:
        return Step(scale(self.centroid_update.division, self.layout.parties), "⟨n⟩ brought to [½, 1)", "S3")

    @property
    def refine(self) -> Step:
        return Step(refine(self.centroid_update.division), "1/⟨n⟩", "S3")

    @property
    def unmask(self) -> Step | None:
        if (self.k == 1 and not self.trims) or not any(self.engines.update):
            return None
        products = ColumnShardProducts(self.layout, self.engines.update, self.starts)
        return Step(unmask(products), "⟨CᵀX⟩ out of ciphertexts", "S3")

    @property
    def numerator(self) -> Step:
        return Step(numerator(self.centroid_update.division), "⟨CᵀX⟩ on the scale of ⟨n⟩", "S3")

    @property
    def quotient(self) -> Step:
        return Step(quotient(self.centroid_update.division), "⟨μ⟩ = ⟨CᵀX⟩ / ⟨n⟩", "S3")

    @property
    def inertia(self) -> Step:
        return Step(inertia(), "⟨Σ|x|²⟩ − Σ ⟨n⟩·⟨|μ|²⟩")

    # the best of several starts
    @property
    def start_norms(self) -> Step:
        return Step(squared_norms().named("start-norms"), "⟨|μ|²⟩ of all starts")

    @property
    def choose_best(self) -> Step:
        protocol = choose_best(self.starts, self.layout.parties).named("start-choose")
        return Step(protocol, "⟨best⟩, the start of the least inertia")

    @property
    def take_best(self) -> Step:
        return Step(take_best(self.starts).named("start-take"), "⟨μ⟩ of the best start")

    @property
    def take_counts(self) -> Step:
        return Step(take_counts(self.starts).named("start-counts"), "⟨n⟩ of the best start")


_POLICY_DIGEST = re.compile(r"-[0-9a-f]{12}$")


def step_name(stage: str) -> str:
    """The step of a stage: of "assign.03.choose" it is "assign"; an opening's policy digest is left out."""
    return _POLICY_DIGEST.sub("", stage.split(".")[0])
