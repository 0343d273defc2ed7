"""One party's passes over the shards of an alignment: messages and files around `psi_shards`, as Beam elements."""

import hashlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from veilmeans.crypto.ot.ot_session import NONCE_SIZE
from veilmeans.crypto.ot.psi.id_hash import hash_under_key
from veilmeans.crypto.pairwise_encryption import PairwiseCipher
from veilmeans.crypto.prg import SEED_SIZE
from veilmeans.io.exchange.connections import load_identity, load_peer_certificates, open_exchange
from veilmeans.io.exchange.exchange import Exchange, Outgoing, read_arrays
from veilmeans.io.files.atomic_files import make_private_folder, map_arrays, write_arrays
from veilmeans.io.files.secret_files import read_secret, write_secret
from veilmeans.io.storage.id_records import IdRecordWriter, all_parts, read_records
from veilmeans.io.storage.scratch import Scratch
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Array, Arrays
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import RefusedError
from veilmeans.schemas.message import MessageKey
from veilmeans.schemas.run_folder import AlignmentFolder
from veilmeans.transforms.alignment.alignment_shape import AlignmentShape
from veilmeans.transforms.alignment.psi_shards import Keys, PsiShard, shard_numbers
from veilmeans.transforms.offline.ot_setup import OtSetup, of_peer
from veilmeans.transforms.offline.traced_job import StoreShard
from veilmeans.transforms.rounds.executor import CountStage, run_rounds
from veilmeans.transforms.rounds.party_context import OpenPartyContext
from veilmeans.transforms.rounds.stage_metrics import OFFLINE, StageMetrics, count_stage, shard_sent

_COT_SECONDS, _ID_SECONDS = 3e-7, 2e-5  # a peer may take so long for each COT and each id, while it is silent
EXTEND, MASK, PROGRAM, TAGS = "align.extend", "align.mask", "align.program", "align.tags"
BASE, VOLE, OUTPUTS, ORDER = "base", "vole", "outputs", "order"  # what is kept of a shard


@dataclass(frozen=True)
class Aligning:
    """The public parameters of an alignment, and where this party keeps what belongs to it. `config`: `aligning()`."""

    config: JobConfig
    folder: AlignmentFolder
    shape: AlignmentShape

    @cached_property
    def ot_setup(self) -> OtSetup:
        return OtSetup(self.config.run, self.shape.shards)

    @property
    def is_leader(self) -> bool:
        return self.config.me.index == self.shape.leader

    @property
    def passes(self) -> int:
        return 2 if self.is_leader else 3

    @property
    def shards(self) -> list[StoreShard]:
        """The shards, named as those of a triple store are."""
        return [(0, 0, shard) for shard in range(self.shape.shards)]

    @property
    def timeout(self) -> float:
        """Seconds to wait for a message: the peer may have all other shards before it, and all its ids to read."""
        work = self.shape.shards * self.shape.cots * (len(self.config.parties) - 1)
        return self.config.exchange.timeout_s + _COT_SECONDS * work + _ID_SECONDS * sum(self.shape.ids)

    def secrets(self) -> dict[str, bytes]:
        """The seed of this party's secrets and its contribution to the nonce: drawn once for an alignment."""
        if not self.folder.secret.exists():
            make_private_folder(self.folder.making)
            write_secret(self.folder.secret, os.urandom(SEED_SIZE + NONCE_SIZE))
        content = read_secret(self.folder.secret)
        return {"seed": content[:SEED_SIZE], "contribution": content[SEED_SIZE:]}

    def keys(self) -> Keys:
        """This party's secrets after the set-up."""
        state = {"seed": np.frombuffer(self.secrets()["seed"], np.uint8), **map_arrays(self.folder.setup)}
        identity, certificates = load_identity(self.config), load_peer_certificates(self.config)
        purpose = f"align {self.config.run}".encode()
        pairwise = {
            self.config.parties.index(peer): PairwiseCipher(identity, certificate).digest(purpose)
            for peer, certificate in certificates.items()
        }
        return Keys(state, pairwise)


def run_setup(aligning: Aligning, exchange: Exchange, count: CountStage) -> None:
    """Run the set-up of OTs with the peers, and write what the shards need of it."""
    config, setup, folder = aligning.config, aligning.ot_setup, aligning.folder
    if folder.setup.exists():
        return
    drawn = {name: np.frombuffer(secret, np.uint8) for name, secret in aligning.secrets().items()}
    context = OpenPartyContext(config.me, config.run, 0, exchange, b"", None, Scratch("value"), aligning.timeout)

    def count_round(stage: str, costs: StageMetrics) -> None:
        count(f"align.{stage.rpartition('.')[2]}", costs)

    state = run_rounds(setup.protocol(), context, {0: drawn}, count_round)[0]
    for shard, (base_q, base_t) in enumerate(setup.base_cots(config.me, state)):
        own = base_t if aligning.is_leader else of_peer(config.me, base_q, aligning.shape.leader)
        write_arrays(folder.shard(BASE, shard), {BASE: own})
    exchange.flush()
    write_arrays(folder.setup, {"nonce": state["nonce"]})


def shard_ids(aligning: Aligning) -> None:
    """Hash the ids under the job's key, and spread them over the shards."""
    folder, key = aligning.folder, aligning.keys().of_job
    writer = IdRecordWriter(folder.shards, aligning.shape.shards)
    for number in all_parts(folder.ids):
        hashes, rows = read_records(folder.ids, number)
        keyed = hash_under_key(key, hashes)
        writer.add(keyed, rows, shard_numbers(keyed, aligning.shape.shards))
    writer.close()


class AlignPass:
    """One pass over shards: receive the messages of the peers' pass before, send the next ones."""

    def __init__(self, aligning: Aligning, number: int) -> None:
        self.aligning, self.number = aligning, number

    def setup(self) -> None:
        self.exchange, self.keys = open_exchange(self.aligning.config), self.aligning.keys()

    def process(self, store_shard: StoreShard, count: CountStage = count_stage) -> Iterator[int]:
        shard = store_shard[2]
        passes = (self._mask, self._match) if self.aligning.is_leader else (self._extend, self._program, self._take)
        self.count, self.started = count, time.perf_counter()
        passes[self.number](shard)
        shard_sent(0, OFFLINE, shard, 0)
        yield shard

    def _extend(self, shard: int) -> None:
        psi = self._psi(shard)[0]
        b, sums = psi.extend(self._kept(BASE, shard)[BASE])
        self._send(EXTEND, shard, {psi.leader: {"sums": sums}})
        self._keep(VOLE, shard, {"b": b})

    def _mask(self, shard: int) -> None:
        psi = self._psi(shard)[0]
        received = {member: self._get(EXTEND, shard, member, "sums")["sums"] for member in psi.members}
        message, total = psi.mask(self._kept(BASE, shard)[BASE], received)
        self._send(MASK, shard, {member: {"store": message} for member in psi.members})
        self._keep(OUTPUTS, shard, {"total": total})

    def _program(self, shard: int) -> None:
        psi = self._psi(shard)[0]
        received = self._get(MASK, shard, psi.leader, "store")["store"]
        self._send(PROGRAM, shard, {psi.leader: {"store": psi.program(self._kept(VOLE, shard)["b"], received)}})

    def _match(self, shard: int) -> None:
        psi, rows = self._psi(shard)
        received = {member: self._get(PROGRAM, shard, member, "store")["store"] for member in psi.members}
        common = psi.match(self._kept(OUTPUTS, shard)["total"], received)
        tags = {member: psi.tags(member, common) for member in psi.members}
        self._send(TAGS, shard, {member: {"low": low, "high": high} for member, (low, high) in tags.items()})
        self._keep_order(psi, rows, common)

    def _take(self, shard: int) -> None:
        psi, rows = self._psi(shard)
        received = self._get(TAGS, shard, psi.leader, "low", "high")
        self._keep_order(psi, rows, psi.find_tags(received["low"], received["high"]))

    def _psi(self, shard: int) -> tuple[PsiShard, Array]:
        aligning = self.aligning
        hashes, rows = read_records(aligning.folder.shards, shard)
        run, party = aligning.config.run, aligning.config.me
        return PsiShard(run, aligning.ot_setup, aligning.shape, party, shard, self.keys, hashes), rows

    def _keep_order(self, psi: PsiShard, rows: Array, common: Array) -> None:
        positions, digest = psi.ordered(common)
        self._keep(ORDER, psi.shard, {"rows": rows[positions], "digest": np.frombuffer(digest, np.uint8)})

    def _kept(self, kind: str, shard: int) -> Arrays:
        return map_arrays(self.aligning.folder.shard(kind, shard))

    def _keep(self, kind: str, shard: int, arrays: Arrays) -> None:
        write_arrays(self.aligning.folder.shard(kind, shard), arrays)

    def _send(self, stage: str, shard: int, messages: dict[int, Arrays]) -> None:
        config, address = self.aligning.config, Address(self.aligning.config.run, 0, stage, shard)
        keys = {peer: MessageKey(address, config.party, config.parties[peer]) for peer in messages}
        sent = [Outgoing.of(keys[peer], arrays) for peer, arrays in messages.items()]
        size, now = sum(each.payload.size for each in sent), time.perf_counter()
        self.count(stage, StageMetrics(messages=len(sent), bytes_sent=size, computed=now - self.started))
        self.exchange.put_all(sent)

    def _get(self, stage: str, shard: int, peer: int, *names: str) -> dict[str, Array]:
        config, start = self.aligning.config, time.perf_counter()
        key = MessageKey(Address(config.run, 0, stage, shard), config.parties[peer], config.party)
        payload = self.exchange.get(key, self.aligning.timeout)
        waited = time.perf_counter() - start
        self.started += waited
        self.count(stage, StageMetrics(bytes_received=payload.size, waited=waited))
        arrays = read_arrays(key, payload)
        if set(arrays) != set(names):
            raise RefusedError(f"message {key} does not hold {' and '.join(names)}")
        return arrays


def collect_order(aligning: Aligning, places: Array) -> tuple[int, str]:
    """Write each row's place in the agreed order into `places`; return how many rows have one, and a digest."""
    start, digest = 0, hashlib.sha256()
    for shard in range(aligning.shape.shards):
        kept = map_arrays(aligning.folder.shard(ORDER, shard))
        places[kept["rows"]] = start + np.arange(len(kept["rows"]))
        start += len(kept["rows"])
        digest.update(kept["digest"].tobytes())
    return start, digest.hexdigest()
