"""Scaling to a common scale and back."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from veilmeans.io.sources.scaling import Method, Scaling, scaling_of
from veilmeans.schemas.arrays import Real


@given(hnp.arrays(np.float64, (7, 3), elements=st.integers(-9000, 9000).map(lambda x: x / 8)))
@pytest.mark.parametrize("method", ["minmax", "zscore", "none"])
def test_normalised_values_are_brought_back_to_original_units(method: Method, values: Real) -> None:
    scaling = scaling_of(method, *(each(values, axis=0) for each in (np.min, np.max, np.mean, np.std)))
    np.testing.assert_allclose(scaling.original(scaling.normalise(values)), values, atol=1e-6)


@pytest.mark.parametrize("method", ["minmax", "zscore"])
def test_a_constant_column_becomes_zero_and_comes_back(method: Method) -> None:
    scaling = scaling_of(method, (0.1, 0.0), (0.1, 1.0), (0.1, 0.001), (0.0, 0.03))
    assert scaling.factor[0] == 0
    assert scaling.normalise(np.array([[0.1, 1], [7, 0]]))[:, 0].tolist() == [0, 0]
    assert scaling.original(np.array([[0.0, 0.0], [5.0, 0.0]]))[:, 0].tolist() == [0.1, 0.1]


def test_a_range_too_narrow_for_a_finite_factor_counts_as_constant() -> None:
    assert scaling_of("minmax", [0.0], [5e-324], [0.0], [0.0]).factor == (0.0,)


def test_each_method_uses_only_its_own_statistics() -> None:
    assert scaling_of("minmax", [1], [3], [math.nan], [math.nan]) == Scaling((1.0,), (0.5,))
    assert scaling_of("zscore", [math.nan], [math.nan], [1], [4]) == Scaling((1.0,), (0.25,))
    assert scaling_of("none", [1, 2], [3, 4], [2, 3], [1, 1]) == Scaling((0.0, 0.0), (1.0, 1.0))
