"""Every kind from random OTs, against plain integers; what it costs; and what its corrections show."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.ot_dealing import check_kind, make_by_ot
from veilmeans.crypto.correlations import BitProducts, DaBit, Inject, Mul, ProductGroups, Trunc
from veilmeans.crypto.ot.kinds.ot_recipes import recipe_for
from veilmeans.schemas.errors import ConfigError


@st.composite
def groups(draw: st.DrawFn, known: bool) -> ProductGroups:
    masks = draw(st.integers(1, 3)) * 2 if known else draw(st.integers(1, 5))
    factor = st.lists(st.integers(0, masks - 1), min_size=1, max_size=3, unique=True).map(tuple)
    product = st.lists(factor, min_size=1, max_size=4).map(tuple)
    sums = st.lists(st.lists(product, min_size=1, max_size=3).map(tuple), min_size=1, max_size=6).map(tuple)
    return ProductGroups(draw(st.integers(1, 3)), masks, draw(sums))


@settings(max_examples=60, deadline=None)
@given(data=st.data(), known=st.booleans(), words=st.integers(1, 5))
def test_any_sums_of_products(data: st.DataObject, known: bool, words: int) -> None:
    kind = BitProducts(2, words, tuple(data.draw(st.lists(groups(known), min_size=1, max_size=2))), known)
    check_kind(kind, make_by_ot(kind))


@settings(max_examples=30, deadline=None)
@given(count=st.integers(1, 300))
def test_words(count: int) -> None:
    kinds = (
        DaBit(2, count),
        Inject(2, count),
        Inject(2, count, np.uint32),
        Inject(2, 4 * count, times=4),
        Mul(2, (count, 1)),
        Trunc(2, count, count % 63 + 1),
    )
    for kind in kinds:
        check_kind(kind, make_by_ot(kind))


@pytest.mark.parametrize("shape", [(0,), (3, 4), (2, 3, 5)])
def test_products_of_any_shape(shape: tuple[int, ...]) -> None:
    kind = Mul(2, shape)
    check_kind(kind, make_by_ot(kind))


def test_a_kind_of_three_parties_is_refused() -> None:
    with pytest.raises(ConfigError, match="two parties"):
        recipe_for(Mul(3, (1,)))
