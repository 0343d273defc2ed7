"""Every kind from random OTs, against plain integers; what it costs; and what its corrections show."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.ot_dealing import check_kind, make_by_ot
from veilmeans.crypto.correlations import BitProducts, DaBit, Inject, Mul, ProductGroups, Trunc


@st.composite
def groups(draw: st.DrawFn, known: bool) -> ProductGroups:
    masks = draw(st.integers(1, 3)) * 2 if known else draw(st.integers(1, 5))
    factor = st.lists(st.integers(0, masks - 1), min_size=1, max_size=3, unique=True).map(tuple)
    product = st.lists(factor, min_size=1, max_size=4).map(tuple)
    sums = st.lists(st.lists(product, min_size=1, max_size=3).map(tuple), min_size=1, max_size=6).map(tuple)
    return ProductGroups(draw(st.integers(1, 3)), masks, draw(sums))


@settings(max_examples=90, deadline=None)
@given(data=st.data(), parties=st.integers(2, 4), words=st.integers(1, 5))
def test_any_sums_of_products(data: st.DataObject, parties: int, words: int) -> None:
    known = parties == 2 and data.draw(st.booleans())
    kind = BitProducts(parties, words, tuple(data.draw(st.lists(groups(known), min_size=1, max_size=2))), known)
    check_kind(kind, make_by_ot(kind, parties))


@settings(max_examples=40, deadline=None)
@given(count=st.integers(0, 300), parties=st.integers(2, 4))
def test_words(count: int, parties: int) -> None:
    kinds = (
        DaBit(parties, count),
        Inject(parties, count),
        Inject(parties, count, np.uint32),
        Inject(parties, 4 * count, times=4),
        Mul(parties, (count, 1)),
        Trunc(parties, count // 4, count % 63 + 1),
    )
    for kind in kinds:
        check_kind(kind, make_by_ot(kind, parties))


@pytest.mark.parametrize("shape", [(0,), (3, 4), (2, 3, 5)])
@pytest.mark.parametrize("parties", [2, 3])
def test_products_of_any_shape(shape: tuple[int, ...], parties: int) -> None:
    kind = Mul(parties, shape)
    check_kind(kind, make_by_ot(kind, parties))
