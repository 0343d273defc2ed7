"""Counting common ids: the number is right, and neither party can connect a point with an id."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.id_sets import id_hashes
from veilmeans.crypto.ot.psi.common_count import count_common, mask_ids, mask_points, secret_scalar
from veilmeans.schemas.errors import RefusedError


@settings(max_examples=20, deadline=None)
@given(one=st.sets(st.integers(0, 40)), other=st.sets(st.integers(0, 40)))
def test_the_number_of_common_ids(one: set[int], other: set[int]) -> None:
    a, b = secret_scalar(os.urandom(32)), secret_scalar(os.urandom(32))
    returned = mask_points("shop", b, mask_ids(a, id_hashes(sorted(one))))
    theirs = mask_points("shop", a, mask_ids(b, id_hashes(sorted(other))))
    assert count_common(returned, theirs) == len(one & other)


def test_points_have_lost_the_order_of_ids_and_a_dictionary_finds_none() -> None:
    """The leader knows a, and tries to find its ids among the points that came back; a reader tries without a or b."""
    a, b = secret_scalar(os.urandom(32)), secret_scalar(os.urandom(32))
    ids = list(range(50))
    sent = mask_ids(a, id_hashes(ids))
    returned = mask_points("shop", b, sent)
    assert (mask_ids(a, id_hashes(ids[::-1])) == sent).all()
    for guess in (a, secret_scalar(b""), (1).to_bytes(32, "little")):
        found = {row.tobytes() for row in mask_ids(guess, id_hashes(range(100)))}
        assert not found & {row.tobytes() for row in returned}
    assert [row.tobytes() for row in returned] == sorted(row.tobytes() for row in returned)


def test_what_is_no_point_is_refused() -> None:
    with pytest.raises(RefusedError, match="shop sent what is not a point"):
        mask_points("shop", secret_scalar(b""), np.zeros((1, 32), np.uint8))
