"""The offline work of the homomorphic engine: the ciphertexts that runs of a triple store use up.

Each party makes its own: encryptions of zero under its own key, with which it will encrypt its shares, and encryptions
of masks under the others' keys. They depend on shapes and not on data, and none of them is sent.
"""

import time
from collections.abc import Iterator, Sequence

import numpy as np
from gmpy2 import mpz

from veilmeans.crypto import prg
from veilmeans.crypto.he import scheme as he
from veilmeans.crypto.he.scheme import Ciphertexts
from veilmeans.io.exchange.connections import attach_shared
from veilmeans.io.storage.he_keyring import Keyring, load_keyring
from veilmeans.io.storage.triple_store import Manifest, TripleStore, correction_name, store_address
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Array
from veilmeans.schemas.config import JobConfig
from veilmeans.transforms.offline.traced_job import StoreJobs, StoreShard
from veilmeans.transforms.rounds.executor import CountStage
from veilmeans.transforms.rounds.forked_work import spread
from veilmeans.transforms.rounds.he_operations import draw_mask_bytes
from veilmeans.transforms.rounds.interfaces import CiphertextNeed
from veilmeans.transforms.rounds.party_context import cipher_processes
from veilmeans.transforms.rounds.stage_metrics import OFFLINE, StageMetrics, count_stage, shard_sent

_ENCRYPTION = 50  # multiplications that take the time of one encryption


class MakeCiphertexts:
    """Make this party's ciphertexts of one shard and write them to its triple store."""

    def __init__(self, config: JobConfig, plan: StoreJobs, manifest: Manifest) -> None:
        self.config, self.plan, self.manifest = config, plan, manifest

    def setup(self) -> None:
        attach_shared(self.config)
        self.store = TripleStore(self.config.store_folder, self.manifest, b"")
        self.keyring = load_keyring(self.config.store_folder, self.config.me)

    def process(self, store_shard: StoreShard, count: CountStage = count_stage) -> Iterator[int]:
        number, iteration, shard = store_shard
        if not self.store.has_ciphertexts(number, iteration, shard):
            self.store.write_ciphertexts(number, iteration, shard, self._make(number, iteration, shard, count))
        shard_sent(iteration, OFFLINE, shard, 0)
        yield shard

    def _make(self, number: int, iteration: int, shard: int, count: CountStage) -> dict[str, Array]:
        ciphertexts, keyring = dict[str, Array](), self.keyring.for_number(number)
        for stage, needs in self.plan.of(number).ciphertext_needs(shard, iteration).items():
            address = store_address(self.manifest.store, number, Address("", iteration, stage, shard))
            for need in needs:
                if need.maker == self.config.me.index:
                    start = time.perf_counter()
                    made = make_ciphertexts(need, keyring, address, cipher_processes(self.config))
                    ciphertexts[correction_name(stage, need.label)] = made
                    count(stage, StageMetrics(computed=time.perf_counter() - start, ciphertexts=need.count))
        return ciphertexts


def make_ciphertexts(need: CiphertextNeed, keyring: Keyring, address: Address, processes: int = 1) -> Ciphertexts:
    """Encrypt zeros or masks, with randomness that is expanded at a triple store's address; over so many processes."""
    key, product = keyring.public(need.key), need.product
    length = -(-key.random_bits(product.growth if need.masked else 0) // 8)
    random = prg.uniform(keyring.seed, address, f"{need.label}.blind", (need.count, length), np.uint8)
    masks: Sequence[mpz] = ()
    if need.masked:
        masks, _ = product.slots.masks(draw_mask_bytes(keyring.seed, address, need.label, product, need.count))

    def part(start: int, end: int) -> list[mpz]:
        zeros = he.encrypt_zeros(key, random[start:end])
        return he.from_ciphertexts(he.encrypt(key, masks[start:end], zeros) if need.masked else zeros)

    weights = np.full(need.count, _ENCRYPTION)
    return he.to_ciphertexts(spread(part, weights, key.size, processes), key.size)
