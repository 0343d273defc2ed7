"""The dealer's side (`veilmeans deal`), and how a party takes in what was dealt.

The dealer learns shapes from the handshake: rows, shards, who takes part. It never sees data or the parties' messages.
"""

import logging
import os
from collections.abc import Mapping

import numpy as np

from veilmeans.crypto.prg import SEED_SIZE, derive
from veilmeans.crypto.ring import DTYPE
from veilmeans.io.exchange import Exchange, Outgoing, get_arrays
from veilmeans.io.handshake import shake_hands
from veilmeans.io.inputs import StagedInput
from veilmeans.io.keys import read_secret, write_secret
from veilmeans.io.triples import TripleStore
from veilmeans.pipelines.party import agreed_terms, finished, say_farewell, seated
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Array
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import ConfigError, HandshakeError
from veilmeans.schemas.message import Key
from veilmeans.schemas.party import Party
from veilmeans.schemas.terms import Terms
from veilmeans.transforms.deal import mul_correction
from veilmeans.transforms.rounds import Inbox
from veilmeans.transforms.seat import Seat
from veilmeans.transforms.sums import product_protocol
from veilmeans.transforms.trace import StageTrace, trace

log = logging.getLogger(__name__)

SEEDS = "offline.seed"


def run_dealer(config: JobConfig) -> None:
    """Deal for one run, then wait until every party has what it needs."""
    if config.party != config.dealer or config.sums is None:
        raise ConfigError(f"{config.party} is not the dealer of this run, or its configuration has no `sums:`")
    if finished(config):
        return
    with seated(config) as exchange:
        rows = _agree(exchange, config)
        seeds = [derive(_dealer_seed(config), f"party {name}") for name in config.parties]
        where = Address(config.run, 0, SEEDS, 0)
        exchange.put_all(
            [
                Outgoing.of(Key(where, config.party, name), {"seed": np.frombuffer(seed, np.uint8)})
                for name, seed in zip(config.parties, seeds, strict=True)
            ]
        )
        dealt = _deal_corrections(exchange, config, seeds, rows)
        log.info("dealt %d shards of triples to %s", dealt, ", ".join(config.parties))
        say_farewell(exchange, config, iteration=1)


def fetch_triples(exchange: Exchange, config: JobConfig, seat: Seat, staged: StagedInput) -> None:
    """Take this party's seed and corrections from the dealer into its triple store."""
    complete = config.triples_folder / "complete"
    if complete.exists():
        return
    dealer, timeout = config.dealer or "", config.exchange.timeout_s
    key = Key(Address(config.run, 0, SEEDS, 0), dealer, config.party)
    corrected = config.me.index == config.me.count - 1
    seed = _dealt(exchange, key, "seed", np.zeros(SEED_SIZE, np.uint8), timeout).tobytes()
    store = TripleStore.create(config.triples_folder, seed, corrected)
    if corrected:
        for where, shape in _addresses(config, seat.iteration, staged.rows):
            key = Key(_offline(where), dealer, config.party)
            store.write_correction(where, {"mul.c": _dealt(exchange, key, "mul.c", np.zeros(shape, DTYPE), timeout)})
    complete.touch()


def _dealt(exchange: Exchange, key: Key, name: str, like: Array, timeout: float) -> Array:
    inbox = Inbox(Party(1, (key.sender, key.recipient)), {0: get_arrays(exchange, key, timeout)})
    return inbox.from_peer(0, name, like)


def _deal_corrections(exchange: Exchange, config: JobConfig, seeds: list[bytes], rows: int) -> int:
    dealt = 0
    for where, shape in _addresses(config, 0, rows):
        key = Key(_offline(where), config.party, config.parties[-1])
        exchange.put_all([Outgoing.of(key, {"mul.c": mul_correction(seeds, where, shape)})])
        dealt += 1
    return dealt


def _addresses(config: JobConfig, iteration: int, rows: int) -> list[tuple[Address, tuple[int, ...]]]:
    """Every address that will ask for triples, and the shape it will ask for."""
    size = config.engine.rows_per_shard
    lengths = [min(size, rows - start) for start in range(0, rows, size)]
    traces: dict[int, list[StageTrace]] = {n: _trace(config, n) for n in set(lengths)}
    return [
        (Address(config.run, iteration, stage.name, shard), shape)
        for shard, length in enumerate(lengths)
        for stage in traces[length]
        for shape in stage.mul_shapes
    ]


def _trace(config: JobConfig, rows: int) -> list[StageTrace]:
    shape = {"x": ((rows, 1), "uint64")}
    return trace(product_protocol(0, 0), [shape] * len(config.parties))


def _offline(where: Address) -> Address:
    return Address(where.run, where.iteration, f"offline.{where.stage}", where.shard)


def _agree(exchange: Exchange, config: JobConfig) -> int:
    """Shake hands with the parties; how many rows they have."""
    job = config.sums
    if job is None:
        raise ConfigError("the dealer's configuration has no `sums:`")
    common = {**agreed_terms(config), "sums.product": list(job.product), "sums.bound": job.bound}
    terms = {name: Terms(common) for name in config.parties}
    heard = shake_hands(
        exchange, config.party, config.run, terms, config.run_folder, config.exchange.timeout_s, check=_common_rows
    )
    return _common_rows(heard)


def _common_rows(heard: Mapping[str, Terms]) -> int:
    rows = {name: int(said.announced["rows"]) for name, said in heard.items()}
    if len(set(rows.values())) != 1:
        raise HandshakeError("rows differ: " + ", ".join(f"{n:,} at {name}" for name, n in rows.items()))
    return next(iter(rows.values()))


def _dealer_seed(config: JobConfig) -> bytes:
    """One fresh secret for each run, kept so that a dealer that is started again deals the same."""
    file = config.run_folder / "dealer.seed"
    if not file.exists():
        write_secret(file, os.urandom(SEED_SIZE))
    return read_secret(file)
