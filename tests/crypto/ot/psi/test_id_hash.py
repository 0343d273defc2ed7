"""Hashes of ids are BLAKE2b, with and without a key."""

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from veilmeans.crypto.ot.psi.id_hash import hash_texts, hash_under_key


@settings(max_examples=60, deadline=None)
@given(texts=st.lists(st.binary(max_size=300), min_size=1, max_size=8), key=st.binary(min_size=1, max_size=64))
def test_hashes_are_those_of_hashlib(texts: list[bytes], key: bytes) -> None:
    ends = np.cumsum([0, *map(len, texts)])
    found = hash_texts(np.frombuffer(b"".join(texts), np.uint8), ends)
    expected = [hashlib.blake2b(text, digest_size=32).digest() for text in texts]
    assert [row.tobytes() for row in found] == expected
    keyed = [hashlib.blake2b(each, digest_size=32, key=key).digest() for each in expected]
    assert [row.tobytes() for row in hash_under_key(key, found)] == keyed


@pytest.mark.parametrize("size", [0, 65])
def test_a_key_has_one_to_64_bytes(size: int) -> None:
    with pytest.raises(ValueError, match="bytes"):
        hash_under_key(bytes(size), np.zeros((1, 4), np.uint64))
