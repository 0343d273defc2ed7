"""A digest depends on values and on nothing else."""

from dataclasses import make_dataclass

import numpy as np
import pytest

from veilmeans.schemas.digests import digest_of_values

Before = make_dataclass("Before", [("rows", int), ("dtype", type)], frozen=True)
After = make_dataclass("After", [("count", int), ("word", type)], frozen=True)


def test_a_renamed_class_or_field_does_not_change_the_digest() -> None:
    assert digest_of_values([Before(3, np.uint8)]) == digest_of_values([After(3, np.uint8)])


@pytest.mark.parametrize("other", [Before(4, np.uint8), Before(3, np.uint16), (3, np.uint8), None])
def test_another_value_changes_the_digest(other: object) -> None:
    assert digest_of_values([Before(3, np.uint8)]) != digest_of_values([other])


def test_a_value_without_a_stable_form_is_refused() -> None:
    with pytest.raises(TypeError, match="object"):
        digest_of_values([object()])
