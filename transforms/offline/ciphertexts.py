"""The offline work of the homomorphic engine: keys, and the ciphertexts that runs of a store use up.

Each party makes its own: encryptions of zero under its own key, with which it will encrypt its shares, and encryptions
of masks under the others' keys. Both know shapes and no data; nothing but public keys crosses.
"""

import time
from collections.abc import Iterator, Mapping

import apache_beam as beam
import numpy as np

from veilmeans.crypto import prg
from veilmeans.crypto.he import scheme as he
from veilmeans.crypto.he.scheme import Ciphers
from veilmeans.io.storage.he_keyring import Keyring, load_keyring
from veilmeans.io.storage.triple_store import Manifest, TripleStore, correction_name, store_address
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Array
from veilmeans.schemas.config import JobConfig
from veilmeans.transforms.offline.requirements import StoreRequirements
from veilmeans.transforms.rounds.he_operations import mask_bytes
from veilmeans.transforms.rounds.interfaces import CiphertextNeed
from veilmeans.transforms.rounds.stage_metrics import Tally, count_stage, shard_sent


class MakeCiphertexts(beam.DoFn):
    """The ciphertexts of one shard, into the store."""

    def __init__(self, config: JobConfig, plan: StoreRequirements, manifest: Manifest) -> None:
        self.config, self.plan, self.manifest = config, plan, manifest

    def setup(self) -> None:
        self.store = TripleStore(self.config.store_folder, self.manifest, b"")
        self.keyring = load_keyring(self.config.store_folder, self.config.me)

    def process(self, place: tuple[int, int, int]) -> Iterator[int]:
        number, iteration, shard = place
        if not self.store.has_ciphers(number, iteration, shard):
            self.store.write_ciphers(number, iteration, shard, self._made(number, iteration, shard))
        shard_sent(iteration, "offline", shard, 0)
        yield shard

    def _made(self, number: int, iteration: int, shard: int) -> Mapping[str, Array]:
        made: dict[str, Array] = {}
        for stage, blindings in self.plan.ciphertext_needs(shard, iteration).items():
            where = store_address(self.manifest.store, number, Address("", iteration, stage, shard))
            for blinding in blindings:
                if blinding.maker == self.config.me.index:
                    start = time.perf_counter()
                    made[correction_name(stage, blinding.label)] = make_ciphertexts(blinding, self.keyring, where)
                    count_stage(stage, Tally(computed=time.perf_counter() - start, ciphertexts=blinding.count))
        return made


def make_ciphertexts(blinding: CiphertextNeed, keyring: Keyring, address: Address) -> Ciphers:
    """The offline work: encryptions of zero, or of masks."""
    key, product = keyring.public(blinding.key), blinding.product
    length = -(-key.random_bits(product.growth if blinding.masked else 0) // 8)
    random = prg.uniform(keyring.seed, address, f"{blinding.label}.blind", (blinding.count, length), np.uint8)
    zeros = he.blinds(key, random)
    if not blinding.masked:
        return zeros
    plains, _ = product.slots.masks(mask_bytes(keyring.seed, address, blinding.label, product, blinding.count))
    return he.encrypt(key, plains, zeros)
