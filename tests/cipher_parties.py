"""Keys of the homomorphic engine for parties in memory, and the ciphertexts that their offline phase would make."""

from collections.abc import Mapping, Sequence
from functools import cache

from veilmeans.crypto import homomorphic as he
from veilmeans.crypto.sparse_product import Cipher
from veilmeans.io.keyring import Keyring
from veilmeans.io.triples import correction_name, store_address
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Array
from veilmeans.transforms.homomorphic import Blinding, blind

SMALL = Cipher("okamoto-uchiyama", 1536)
"""Quick, and too short to be safe."""
PAILLIER = Cipher("paillier", 768)


@cache
def keyrings(parties: int, cipher: Cipher = SMALL) -> tuple[Keyring, ...]:
    """Every party's keys, made once in a test process."""
    keys = [_key(cipher, i) for i in range(parties)]
    return tuple(
        Keyring(keys[i], {j: key.public for j, key in enumerate(keys) if j != i}, bytes([i]) * 32)
        for i in range(parties)
    )


@cache
def _key(cipher: Cipher, number: int) -> he.PrivateKey:
    del number
    return he.generate(cipher.scheme, cipher.bits)


def make_ciphers(
    rings: Sequence[Keyring], store: str, iteration: int, shard: int, blindings: Mapping[str, Sequence[Blinding]]
) -> list[dict[str, Array]]:
    """For each party what it makes beforehand for one shard."""
    made: list[dict[str, Array]] = [{} for _ in rings]
    for stage, asked in blindings.items():
        where = store_address(store, 0, Address("", iteration, stage, shard))
        for blinding in asked:
            name = correction_name(stage, blinding.label)
            made[blinding.maker][name] = blind(blinding, rings[blinding.maker], where)
    return made
