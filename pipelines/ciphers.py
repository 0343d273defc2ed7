"""The offline work of the homomorphic engine: keys, and the ciphertexts that runs of a store use up.

Each party makes its own: encryptions of zero under its own key, with which it will encrypt its shares, and encryptions
of masks under the others' keys. Both know shapes and no data; nothing but public keys crosses.
"""

import json
import time
from collections.abc import Iterator, Mapping

import apache_beam as beam
import numpy as np

from veilmeans.crypto.sparse_product import Cipher
from veilmeans.io.exchange import Exchange, Outgoing, get_arrays
from veilmeans.io.keyring import keep_peer, load_keyring, make_own
from veilmeans.io.triples import Manifest, TripleStore, correction_name, store_address
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Array
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import RefusedError
from veilmeans.schemas.message import Key
from veilmeans.transforms.beam_rounds import report
from veilmeans.transforms.homomorphic import blind
from veilmeans.transforms.plan import Plan
from veilmeans.transforms.seat import Tally
from veilmeans.transforms.watch import tell

_STAGE = "offline.key"


def exchange_keys(exchange: Exchange, config: JobConfig, cipher: Cipher) -> None:
    """Make this party's key pair, and get the others' public keys."""
    folder, where = config.store_folder, Address(config.run, 0, _STAGE, 0)
    mine = np.frombuffer(json.dumps(make_own(folder, cipher).to_json()).encode(), np.uint8)
    peers = [name for name in config.parties if name != config.party]
    exchange.put_all([Outgoing.of(Key(where, config.party, peer), {"key": mine}) for peer in peers])
    for peer in peers:
        heard = get_arrays(exchange, Key(where, peer, config.party), config.exchange.timeout_s).get("key")
        if heard is None or heard.dtype != np.uint8:
            raise RefusedError(f"{peer} sent no public key where one was due")
        keep_peer(folder, peer, heard.tobytes(), cipher)


class MakeCiphers(beam.DoFn):
    """The ciphertexts of one shard, into the store."""

    def __init__(self, config: JobConfig, plan: Plan, manifest: Manifest) -> None:
        self.config, self.plan, self.manifest = config, plan, manifest

    def setup(self) -> None:
        self.store = TripleStore(self.config.store_folder, self.manifest, b"")
        self.keyring = load_keyring(self.config.store_folder, self.config.me)

    def process(self, place: tuple[int, int, int]) -> Iterator[int]:
        number, iteration, shard = place
        if not self.store.has_ciphers(number, iteration, shard):
            self.store.write_ciphers(number, iteration, shard, self._made(number, iteration, shard))
        tell(iteration, "offline", shard, 0)
        yield shard

    def _made(self, number: int, iteration: int, shard: int) -> Mapping[str, Array]:
        made: dict[str, Array] = {}
        for stage, blindings in self.plan.blindings(shard, iteration).items():
            where = store_address(self.manifest.store, number, Address("", iteration, stage, shard))
            for blinding in blindings:
                if blinding.maker == self.config.me.index:
                    start = time.perf_counter()
                    made[correction_name(stage, blinding.label)] = blind(blinding, self.keyring, where)
                    report(stage, Tally(computed=time.perf_counter() - start, ciphertexts=blinding.count))
        return made
