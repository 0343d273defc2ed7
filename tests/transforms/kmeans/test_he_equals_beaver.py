"""The engine `he` against `beaver` and float64 Lloyd: whatever computes the products, the clusters are the same.

The cases cover, together: two and three parties, both layouts, both schemes, k from 1 to 5, all sparsities, rows and
columns without a value, a last shard of one row, several shards of columns, owners and products with different engines,
integers, negative numbers, and values at the bound.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from support.kmeans_in_memory import PAILLIER, SMALL, horizontal, kmeans_for, run_kmeans, vertical
from support.lloyd_checks import TOLERANCE, check_against_lloyd
from veilmeans.crypto.he.product_parameters import SchemeParameters
from veilmeans.schemas.arrays import Real
from veilmeans.schemas.kmeans_config import CipherConfig, NormaliseConfig, ProductEnginesConfig, SparseConfig
from veilmeans.schemas.layout import Layout
from veilmeans.transforms.kmeans.steps import KMeansSteps

SAFE = SchemeParameters("okamoto-uchiyama", 2048)
ZSCORE = NormaliseConfig(method="zscore")
PLAIN = NormaliseConfig(method="none", bound=4.0)


def mixed(**engines: str) -> dict[str, Any]:
    """payco="he beaver": he for the distance, beaver for the update."""
    return {
        name: ProductEnginesConfig(**dict(zip(("distance", "update"), both.split(), strict=True)))
        for name, both in engines.items()
    }


@dataclass(frozen=True)
class Case:
    """A job and its rows: a fraction `zeros` is zero, the rest between `low` and `high`, or 1 if `integer_valued`."""

    layout: Layout
    k: int
    zeros: float = 0.5
    cipher: SchemeParameters = SMALL
    products: Any = "he"
    normalise: NormaliseConfig = field(default_factory=NormaliseConfig)
    low: float = 0.0
    high: float = 1.0
    integer_valued: bool = False
    columns_per_shard: int = 1 << 16
    group: int = 1
    iterations: int = 1

    def rows(self) -> Real:
        """Some are empty and some columns are, and the first row occurs twice."""
        shape = self.layout.total_rows, self.layout.total_features
        rng = np.random.default_rng([self.k, *shape])
        values = rng.uniform(self.low, self.high, shape)
        if self.integer_valued or self.low == self.high:
            values = np.ones(shape)
        rows = np.where(rng.random(shape) < self.zeros, 0.0, values)
        if self.zeros:
            rows[3::7] = 0
            rows[:, 2::5] = 0
        rows[-1] = rows[0]
        return rows

    def start(self) -> Real:
        """Of real rows, or near them where those are alike; from three clusters on, one is far from all rows."""
        start = self.rows()[: self.k] + np.linspace(0, 0.25, self.k)[:, None] * (self.high or 1)
        if self.k >= 3:
            start[1] = self.high
        return np.clip(start, self.low, self.high)

    def kmeans(self, products: Any) -> KMeansSteps:
        names = ("payco", "shop", "bank")[: self.layout.parties]
        kmeans = kmeans_for(
            self.layout,
            self.k,
            self.normalise,
            products=products,
            cipher=CipherConfig.model_construct(scheme=self.cipher.scheme, bits=self.cipher.bits),
            sparse={name: SparseConfig(integer_valued=self.integer_valued) for name in names},
            max_iter=self.iterations,
        )
        return replace(kmeans, columns_per_shard=self.columns_per_shard)


TWO = vertical(23, (3, 4), 11)
"""The last of its shards has one row, as has the first party's last of the next."""
SPLIT = horizontal((9, 6), 5, 4)
CASES = {
    "dense": Case(TWO, 3, zeros=0, iterations=2),
    "half": Case(TWO, 2, zeros=0.5, columns_per_shard=2),
    "sparse": Case(vertical(41, (20, 13), 40), 3, zeros=0.9, columns_per_shard=6),
    "sparser": Case(horizontal((31, 12), 40, 15), 2, zeros=0.99, columns_per_shard=17),
    "all zeros": Case(TWO, 2, zeros=1.0),
    "paillier": Case(TWO, 3, cipher=PAILLIER),
    "by rows": Case(SPLIT, 3, zeros=0.9),
    "one cluster": Case(TWO, 1, group=2),
    "several plaintexts": Case(TWO, 5),
    "several plaintexts by rows": Case(SPLIT, 5, columns_per_shard=3),
    "three parties": Case(vertical(11, (2, 3, 2), 5), 3, columns_per_shard=3),
    "three parties by rows": Case(horizontal((5, 4, 3), 4, 4), 2),
    "three with paillier": Case(vertical(7, (2, 1, 2), 6), 2, cipher=PAILLIER, group=2),
    "he and beaver": Case(TWO, 3, products={"payco": "he", "shop": "beaver"}),
    "by rows, beaver and he": Case(SPLIT, 3, products={"payco": "beaver", "shop": "he"}),
    "distances only": Case(TWO, 2, products=mixed(payco="he beaver", shop="he beaver")),
    "updates only": Case(SPLIT, 3, products=mixed(payco="beaver he", shop="beaver he")),
    "crosswise": Case(TWO, 3, products=mixed(payco="he beaver", shop="beaver he"), columns_per_shard=2, iterations=2),
    "each its own": Case(
        vertical(9, (3, 2, 2), 8), 3, products=mixed(payco="he he", shop="beaver he", bank="beaver beaver")
    ),
    "one-hot": Case(TWO, 3, zeros=0.7, integer_valued=True),
    "signs": Case(TWO, 3, normalise=ZSCORE, low=-3.0, high=3.0),
    "signs by rows": Case(SPLIT, 2, normalise=PLAIN, low=-4.0, high=4.0, zeros=0),
    "signs, paillier": Case(TWO, 2, cipher=PAILLIER, normalise=PLAIN, low=-4.0, high=4.0, group=2),
    "all ones": Case(TWO, 2, zeros=0, low=1.0, high=1.0),
    "all at the lowest": Case(SPLIT, 2, zeros=0, normalise=PLAIN, low=-4.0, high=-4.0),
    "grouped one-hot": Case(vertical(29, (1, 2), 14), 2, zeros=0.5, integer_valued=True, group=2),
    "grouped by paillier": Case(vertical(31, (2, 1), 30), 2, cipher=PAILLIER, group=2),
    "grouped signs": Case(horizontal((29, 26), 2, 28), 1, normalise=ZSCORE, low=-2.0, high=2.0, group=3),
    "grouped, safe": Case(vertical(23, (2, 1), 11), 2, cipher=SAFE, group=2),
}


@pytest.mark.parametrize("name", CASES)
def test_clusters_are_those_of_beaver_and_of_lloyd(name: str) -> None:
    case = CASES[name]
    rows, start = case.rows(), case.start()
    kmeans = case.kmeans(case.products)
    assert kmeans.engines.cipher == case.cipher
    assert max((product.group for product in kmeans.engines.distance if product), default=1) == case.group
    found = check_against_lloyd(kmeans, rows, start, case.iterations)
    other = run_kmeans(case.kmeans("beaver"), rows, start, case.iterations)
    for one, two in zip(found, other, strict=True):
        np.testing.assert_array_equal(one.labels, two.labels)
        np.testing.assert_array_equal(one.counts, two.counts)
        np.testing.assert_allclose(one.centroids, two.centroids, rtol=0, atol=TOLERANCE)


def test_the_cases_cover_what_they_shall() -> None:
    cases = list(CASES.values())
    assert {(case.layout.vertical, case.layout.parties) for case in cases} == {
        (v, m) for v in (True, False) for m in (2, 3)
    }
    assert {case.zeros for case in cases} >= {0, 0.5, 0.9, 0.99, 1.0}
    assert {case.k for case in cases} == {1, 2, 3, 5}
    assert {case.group for case in cases} == {1, 2, 3}
    rows = [case.rows() for case in cases]
    assert any((each == 0).all(axis=1).any() and (each == 0).all(axis=0).any() and each.any() for each in rows)
    assert all(
        (abs(each) <= max(map(abs, case.normalise.interval))).all() for case, each in zip(cases, rows, strict=True)
    )
    last = {
        case.layout.row_shards()[-1].shape.rows % product.group
        for case in cases
        for product in case.kmeans(case.products).engines.distance
        if product
    }
    assert last > {0}, "some last group is not full"


def test_rows_that_share_a_plaintext_give_the_same_shares_as_rows_that_do_not() -> None:
    """Not only the same clusters: masks differ, and the values that they hide do not."""
    case = CASES["grouped, safe"]
    kmeans = case.kmeans("he")
    alone = replace(
        kmeans,
        engines=replace(kmeans.engines, distance=tuple(replace(p, group=1) for p in kmeans.engines.distance if p)),
    )
    one, two = (run_kmeans(each, case.rows(), case.start(), 1)[0] for each in (kmeans, alone))
    np.testing.assert_array_equal(one.labels, two.labels)
    np.testing.assert_array_equal(one.centroids, two.centroids)
