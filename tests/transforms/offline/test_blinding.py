"""The randomness of ciphertexts that are made beforehand: as long as it must be, and drawn once for each."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from support.fixed_values import fixed_key
from veilmeans.crypto.he.product_parameters import HEProductParameters, SchemeParameters
from veilmeans.schemas.address import Address
from veilmeans.transforms.offline import ciphertexts
from veilmeans.transforms.rounds.interfaces import CiphertextNeed

KEY = fixed_key("okamoto-uchiyama")
PRODUCT = HEProductParameters(
    cipher=SchemeParameters("okamoto-uchiyama", 2048), rows=7, magnitude=21, shift=0, terms=5, columns=2, sigma=60
)


def drawn(monkeypatch: pytest.MonkeyPatch, masked: bool) -> Any:
    """The random bytes with which ciphertexts are made."""
    seen: list[Any] = []
    encrypt_zeros = ciphertexts.he.encrypt_zeros

    def spy(key: Any, randoms: Any) -> Any:
        seen.append(randoms)
        return encrypt_zeros(key, randoms)

    monkeypatch.setattr(ciphertexts.he, "encrypt_zeros", spy)
    keyring: Any = SimpleNamespace(public=lambda _: KEY.public, seed=bytes(32))
    need = CiphertextNeed("z", 0, 1, 3, PRODUCT, masked)
    ciphertexts.make_ciphertexts(need, keyring, Address("store.0", 0, "distance.00.cross", 0))
    return np.concatenate(seen)


def test_a_mask_hides_the_randomness_of_the_product_by_sigma_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Σ r_c·x_c has 256 + magnitude + log2(terms) bits; without `growth` a fresh 256-bit r' leaves the rest bare."""
    random = drawn(monkeypatch, masked=True)
    longest_product = 256 + PRODUCT.magnitude + 3  # 5 terms
    assert 8 * random.shape[1] >= longest_product + PRODUCT.sigma
    assert random[:, 0].any()
    assert random[:, -1].any()


def test_ciphertexts_of_zeros_have_256_bits_of_randomness_each_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    random = drawn(monkeypatch, masked=False)
    assert random.shape == (3, 32)
    assert len({row.tobytes() for row in random}) == 3
