"""Parameters of each owner's homomorphic products: bounds that follow from a job, and the timeout that they need."""

from typing import Any

import numpy as np
import pytest
from gmpy2 import mpz

from support.config_mistakes import mistake
from support.kmeans_in_memory import horizontal, kmeans_for, vertical
from veilmeans.crypto import ring
from veilmeans.crypto.fixed_point import FRACTION_BITS
from veilmeans.crypto.he.product_parameters import STATISTICAL_SECURITY_BITS, SchemeParameters
from veilmeans.schemas.layout import Layout
from veilmeans.transforms.kmeans.job_trace import trace_job
from veilmeans.transforms.products.engine_parameters import EngineParameters, HEBounds

LARGEST = 2**64 - 1
OKAMOTO_UCHIYAMA, PAILLIER = SchemeParameters("okamoto-uchiyama", 2048), SchemeParameters("paillier", 2048)

LAYOUTS = [vertical(23, (3, 4), 8), vertical(1, (1, 1), 1), horizontal((9, 6), 5, 4), vertical(11, (2, 3, 2), 5)]


def bounds(layout: Layout, k: int = 3, iterations: int = 10, integer_valued: bool = False) -> HEBounds:
    return HEBounds(layout, k, FRACTION_BITS, (integer_valued,) * layout.parties, iterations)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("k", [1, 2, 5])
def test_sigma_counts_every_value_that_a_run_decrypts(layout: Layout, k: int) -> None:
    """Compare with all slots that the offline phase masks; some hold no value. The final assignment counts as one."""
    iterations = 7
    kmeans = kmeans_for(layout, k, products="he", max_iter=iterations)
    plan = trace_job(kmeans)
    masked = 0
    for iteration in range(iterations):
        for shard in range(plan.store_shards):
            for needs in plan.ciphertext_needs(shard, iteration).values():
                masked += sum(need.count * need.product.slots.count for need in needs if need.masked)
    (sigma,) = {product.sigma for product in (*kmeans.engines.distance, *kmeans.engines.update) if product}
    assert sigma == bounds(layout, k, iterations + 1).sigma
    assert masked * 2**STATISTICAL_SECURITY_BITS <= 2**sigma * 2
    assert bounds(layout, k, 8 * (iterations + 1)).sigma == sigma + 3


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("integer_valued", [False, True])
def test_a_sum_has_no_more_terms_than_a_row_has_columns_and_a_column_rows(layout: Layout, integer_valued: bool) -> None:
    for owner in range(layout.parties):
        distance, update = (
            each(owner, OKAMOTO_UCHIYAMA)
            for each in (
                bounds(layout, integer_valued=integer_valued).distance,
                bounds(layout, integer_valued=integer_valued).update,
            )
        )
        assert (distance.terms, update.terms) == (layout.features[owner], layout.rows[owner])
        assert (distance.columns, update.columns) == (3, 2)
        assert (distance.magnitude, distance.shift) == ((0, FRACTION_BITS) if integer_valued else (FRACTION_BITS, 0))
        assert update.group == 1


def test_the_largest_sum_over_2_to_the_30_rows_fits() -> None:
    product = bounds(vertical(2**30, (1, 1), 2**24)).update(0, OKAMOTO_UCHIYAMA)
    value = mpz(2**30 * 2**FRACTION_BITS * LARGEST)
    assert value < 1 << product.bound
    masks, residues = product.slots.masks(np.full((1, product.slots.count, product.slots.mask_bytes), 255, np.uint8))
    total = masks[0] + sum(value << slot * product.slots.width for slot in range(product.slots.count))
    share = product.slots.unpack([total]) - residues
    assert share.tolist() == [[int(value) % 2**64] * product.slots.count]
    assert share.dtype == ring.DTYPE


def test_a_plaintext_without_room_is_refused_when_the_job_is_read() -> None:
    """All allowed rows fit in all allowed keys; a scheme with shorter plaintexts would have no room."""
    job: dict[str, Any] = {"normalise": {"method": "none", "bound": 500.0}, "rows": 2**29, "tol": 0, "products": "he"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SchemeParameters, "capacity", property(lambda cipher: cipher.bits // 16))
        sentence = mistake(**job, cipher={"scheme": "okamoto-uchiyama", "bits": 2048})
    assert "kmeans.cipher" in sentence


def test_extra_timeout_grows_with_the_work_on_ciphertexts() -> None:
    layout = vertical(1000, (3, 4), 100)
    assert EngineParameters((None, None), (None, None)).extra_timeout_s(layout) == 0
    seconds = []
    for cipher in (OKAMOTO_UCHIYAMA, PAILLIER):
        products = tuple(bounds(layout).distance(owner, cipher) for owner in range(2))
        engines = EngineParameters(products, (None, products[1]))
        assert engines.cipher == cipher
        assert engines.masked == {0}
        seconds.append(engines.extra_timeout_s(layout))
    assert 0 < seconds[0] < seconds[1]
