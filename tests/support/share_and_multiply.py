"""A small protocol for tests: share every party's columns, then append the product of two of them."""

from functools import partial

import numpy as np

from veilmeans.schemas.arrays import Arrays
from veilmeans.schemas.party import Party
from veilmeans.transforms.primitives.multiply import multiply
from veilmeans.transforms.primitives.share_and_open import SHARE
from veilmeans.transforms.rounds.protocol import Protocol, require


def share_and_multiply(left: int, right: int) -> Protocol:
    """Share all columns ("x"), then append the product of columns `left` and `right` as one more."""
    product = multiply("left", "right", "product").after(partial(_factors, left, right)).then(_append)
    return (SHARE + product).named("sums")


def _factors(left: int, right: int, party: Party, state: Arrays) -> Arrays:
    del party
    x = require(state, "x")
    return {"x": x, "left": x[:, left : left + 1].copy(), "right": x[:, right : right + 1].copy()}


def _append(party: Party, state: Arrays) -> Arrays:
    del party
    return {"x": np.concatenate([require(state, "x"), require(state, "product")], axis=1)}
