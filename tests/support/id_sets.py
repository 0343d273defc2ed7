"""Hashes of ids, for tests of private set intersection."""

import numpy as np

from veilmeans.crypto.ot.psi.id_hash import IdHashes, hash_texts, hash_under_key


def id_hashes(ids: list[int] | range, key: bytes = b"job") -> IdHashes:
    """The hashes of integer ids under a job's key."""
    texts = [str(each).encode() for each in ids]
    ends = np.cumsum([0, *map(len, texts)])
    return hash_under_key(key, hash_texts(np.frombuffer(b"".join(texts), np.uint8), ends))
