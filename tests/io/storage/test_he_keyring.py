"""Homomorphic keys in a triple store: made once, and a peer's key is stored only if it is of the agreed kind."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from support.fixed_values import fixed_key
from veilmeans.crypto.he import scheme as he
from veilmeans.crypto.he.product_parameters import SchemeParameters
from veilmeans.io.storage.he_keyring import check_scheme_installed, make_own_keys, store_peer_key
from veilmeans.schemas.errors import ConfigError, RefusedError
from veilmeans.schemas.run_folder import StoreFolder

AGREED = SchemeParameters("okamoto-uchiyama", 1024)
PUBLIC = fixed_key("okamoto-uchiyama").public


def test_a_key_is_made_once(tmp_path: Path) -> None:
    first, second = (make_own_keys(StoreFolder(tmp_path), AGREED) for _ in range(2))
    assert first == second
    assert (first.scheme, first.bits) == (AGREED.scheme, AGREED.bits)


def test_a_scheme_without_its_package_is_refused_before_a_key_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "phe", None)
    with pytest.raises(ConfigError, match=r"kmeans\.cipher\.scheme"):
        make_own_keys(StoreFolder(tmp_path), SchemeParameters("paillier", 1024))
    assert not list(tmp_path.iterdir())
    check_scheme_installed("okamoto-uchiyama")


def message(key: he.PublicKey, **fields: Any) -> bytes:
    return json.dumps({**key.to_json(), **fields}).encode()


UNUSABLE = {
    "nothing": b"",
    "not text": b"\xff\xfe\x00",
    "not an object": b"[1, 2]",
    "null": b"null",
    "deep": b"[" * 100_000,
    "no scheme": b"{}",
    "another scheme": message(PUBLIC, scheme="rsa"),
    "an extra field": message(PUBLIC, p="7"),
    "an even n": message(PUBLIC, n=f"{PUBLIC.modulus + 1:x}"),
    "a short n": message(PUBLIC, n="f"),
    "a long n": message(PUBLIC, n="f" * 10_000),
    "g = 1": message(PUBLIC, g="1"),
    "g not a string": message(PUBLIC, g=5),
    "bits not a number": message(PUBLIC, bits="1024"),
    "too many bits": message(PUBLIC, bits=1 << 40),
}


@pytest.mark.parametrize("what", UNUSABLE)
def test_an_unusable_key_is_refused_and_its_sender_named(tmp_path: Path, what: str) -> None:
    with pytest.raises(RefusedError, match="shop"):
        store_peer_key(StoreFolder(tmp_path), "shop", UNUSABLE[what], AGREED)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("scheme", "bits"), [("okamoto-uchiyama", 2048), ("paillier", 1024)])
def test_a_key_of_another_kind_than_agreed_is_refused(tmp_path: Path, scheme: str, bits: int) -> None:
    with pytest.raises(RefusedError, match=f"shop .*{bits} bits .*{scheme}"):
        store_peer_key(StoreFolder(tmp_path), "shop", message(fixed_key(scheme, bits).public), AGREED)
    assert not list(tmp_path.iterdir())
