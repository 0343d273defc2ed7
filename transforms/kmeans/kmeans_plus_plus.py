"""k-means++ on shares (Arthur and Vassilvitskii, 2007): each further centroid is a row, chosen by its squared distance.

The first centroid is a row drawn from the public seed. Each of the k − 1 others is chosen with a probability
proportional to its squared distance to the nearest of those before; nobody learns which row it is:

  1. D = |x|² − 2·x·μ + |μ|² of every row to the newest centroid μ, exactly (|x|² is the sum of what owners know); |μ|²
     and the secret random number r are made beside the product
  2. V ← min(V, D / 2^s), where D / 2^s is rounded at random (`primitives.truncate`): right on average, and 0 stays 0,
     so that a chosen row has the weight 0; s keeps ΣV below 2^31. D and V·2^s are compared at 32 bits: only near-ties
     may go either way, and V is then one of two values that hardly differ
  3. the first row whose prefix sum of V exceeds r·ΣV, as one-hot shares C                (`statistics.weighted_choice`)
  4. the new centroid CᵀX, by the products of the centroid update: it is the row itself, to the last bit

Eleven rounds a centroid for two parties: 1 (distance), 3 + 1 (minimum), 1 (limit), 3 + 1 (choice), 1 (centroid).

k-means|| (Bahmani et al., 2012) would not take fewer: it draws its candidates in few passes over the data, and then
chooses k of them by the same k − 1 steps, one after the other; the passes come on top, with ten times as many products.

Several starts share all rounds and messages: arrays have an axis of c choices, one for each start.
"""

from dataclasses import dataclass
from functools import partial

from veilmeans.crypto import ring
from veilmeans.schemas.arrays import Arrays
from veilmeans.schemas.layout import Layout
from veilmeans.schemas.party import Party
from veilmeans.transforms.kmeans.centroid_update import squared_norms
from veilmeans.transforms.kmeans.cluster_sums import update
from veilmeans.transforms.kmeans.distance import add_norms, distance
from veilmeans.transforms.primitives.bit_injection import inject
from veilmeans.transforms.primitives.compare import Comparison, sign
from veilmeans.transforms.primitives.truncate import Truncation
from veilmeans.transforms.products.cross_product import filled_rows
from veilmeans.transforms.products.engine_parameters import EngineParameters
from veilmeans.transforms.products.he_product import ColumnShardProducts, encrypt_centroids, unmask
from veilmeans.transforms.rounds.executor import Step
from veilmeans.transforms.rounds.protocol import Protocol, merge_rounds, require, without
from veilmeans.transforms.statistics.weighted_choice import choose, draw, limit

_COMPARED_BITS = 32
_X, _NEARER, _GAIN = "near.x", "near.b", "near.by"


@dataclass(frozen=True)
class Seeding:
    """The public parameters of k-means++, and its steps for one centroid.

    `choices`: rows chosen at a time. `times`: the further centroids, k − 1. `distance_bits`: D < 2^distance_bits.
    `shift`: s. `engines`: those of the products with `choices` centroids, and with as many one-hot columns.
    """

    layout: Layout
    choices: int
    times: int
    distance_bits: int
    shift: int
    engines: EngineParameters

    @property
    def farthest(self) -> int:
        """A weight above all: V before the first distance."""
        return 1 << max(0, self.distance_bits - self.shift + 1)

    @property
    def encrypt(self) -> Step | None:
        if not any(self.engines.distance):
            return None
        products = ColumnShardProducts(self.layout, self.engines.distance)
        return Step(encrypt_centroids(products).named("seed-encrypt"), "Enc(⟨μ⟩) of the newest centroid, to the owners")

    @property
    def distance(self) -> Step:
        return Step(distance(self.engines.distance).named("seed-distance"), "−2·X·⟨μ⟩ᵀ of the newest centroid")

    @property
    def norms(self) -> Step:
        return Step(squared_norms().named("seed-norms"), "⟨|μ|²⟩ of the newest centroid")

    @property
    def draw(self) -> Step:
        return Step(draw(self.choices).named("seed-draw"), "⟨r⟩, a secret random number")

    @property
    def nearest(self) -> Step:
        return Step(nearest(self).named("seed-nearest"), "⟨V⟩ = min(⟨V⟩, ⟨D⟩) of each row")

    @property
    def limit(self) -> Step:
        return Step(limit().named("seed-limit"), "⟨r·ΣV⟩")

    @property
    def choose(self) -> Step:
        protocol = choose(self.layout.row_shard_numbers()[-1], self.layout.parties)
        return Step(protocol.named("seed-choose"), "⟨C⟩, the first row whose prefix sum of ⟨V⟩ exceeds it")

    @property
    def update(self) -> Step:
        return Step(update(self.choices + 1, self.engines.update).named("seed-update"), "⟨CᵀX⟩, the new centroid")

    @property
    def unmask(self) -> Step | None:
        if not any(self.engines.update):
            return None
        products = ColumnShardProducts(self.layout, self.engines.update)
        return Step(unmask(products).named("seed-unmask"), "⟨CᵀX⟩ out of ciphertexts")


def nearest(seeding: Seeding) -> Protocol:
    """Update the weights: the comparison, with the truncation in its first round, and one injection.

    State: in "d" (−2·x·μ) and "v" (both c × n), "u" (c), "x2" (n); out "v" and "x2".
    """
    bits = seeding.distance_bits + 3
    comparison = Comparison(_X, _NEARER, bits, drop=max(0, bits - _COMPARED_BITS))
    first, *rest = sign(comparison, seeding.layout.parties).rounds
    first = merge_rounds(first.name, first, Truncation("d", seeding.shift).round)
    compare = Protocol("compare", (first, *rest)).after(partial(_measure, seeding.shift))
    take = Protocol("inject", (inject(_NEARER, _X, _GAIN),)).after(_gain)
    return (compare + take.then(_take)).named("nearest")


def _measure(shift: int, party: Party, state: Arrays) -> Arrays:
    """D, and D − V·2^s."""
    measured = add_norms(party, state)
    d = require(measured, "d") + require(state, "x2")
    return {**measured, "d": d, _X: d - (require(state, "v") << ring.DTYPE(shift))}


def _gain(_party: Party, state: Arrays) -> Arrays:
    """D / 2^s − V, to be added where D is less."""
    return {**without(state, "d"), _X: require(state, "d") - require(state, "v")}


def _take(_party: Party, state: Arrays) -> Arrays:
    """Set V; rows that fill a shard up keep the weight 0."""
    weights = require(state, "v") + require(state, _GAIN)
    weights[:, filled_rows(state) :] = 0
    return {**without(state, _X, _NEARER, _GAIN), "v": weights}
