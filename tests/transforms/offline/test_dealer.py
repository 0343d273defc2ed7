"""The dealer's seeds and corrections: what a party stores, what it refuses, and that a rerun deals the same."""

from pathlib import Path

import numpy as np
import pytest

from support.parties import InMemoryExchange, file_mode, make_configs
from veilmeans.crypto import ring
from veilmeans.crypto.correlations import Mul
from veilmeans.io.exchange.exchange import Outgoing
from veilmeans.io.storage.triple_store import Manifest, StoreRun, TripleStore
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Array, Arrays
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import RefusedError, StorageError
from veilmeans.schemas.layout import ShardShape
from veilmeans.schemas.message import MessageKey
from veilmeans.transforms.offline import dealer
from veilmeans.transforms.offline.dealer import (
    DealShards,
    ReceiveShards,
    dealer_seeds,
    delete_dealer_seeds,
    make_dealer_seed,
    receive_seed,
    send_seeds,
)
from veilmeans.transforms.offline.traced_job import JobStep, TracedJob
from veilmeans.transforms.primitives.multiply import multiply
from veilmeans.transforms.rounds.addressed_randomness import AddressedRandomness
from veilmeans.transforms.rounds.executor import Over
from veilmeans.transforms.rounds.trace import trace

DEALER = "notary"
STAGE = "product.00.multiply"
NAME = f"{STAGE}:mul.c"
SHAPES = (ShardShape(2), ShardShape(1))
MANIFEST = Manifest("store", runs=1, iterations=1, rows=3, plan="")


def one_product() -> TracedJob:
    """A job of two parties that multiplies one value per row, in shards of two rows and of one."""
    protocol = multiply("x", "x", "z").named("product")
    stages = {shape: tuple(trace(protocol, [{"x": ((shape.rows, 1), "uint64")}] * 2)) for shape in SHAPES}
    return TracedJob(SHAPES, (), (JobStep("product", "", "", Over.ROWS, "iteration", (), stages),))


@pytest.fixture
def configs(tmp_path: Path) -> dict[str, JobConfig]:
    made = make_configs(tmp_path, dealer=DEALER, triples={"store": "store"})
    for config in made.values():
        config.offline().run_folder.path.mkdir(parents=True)
    return {name: config.offline() for name, config in made.items()}


@pytest.fixture
def exchange(monkeypatch: pytest.MonkeyPatch) -> InMemoryExchange:
    shared = InMemoryExchange()
    monkeypatch.setattr(dealer, "open_exchange", lambda _: shared)
    return shared


def deal(exchange: InMemoryExchange, config: JobConfig) -> None:
    send_seeds(exchange, config)
    shards = DealShards(config, one_product(), MANIFEST.store)
    shards.setup()
    for shard in range(2):
        list(shards.process((0, 0, shard)))


def receive(exchange: InMemoryExchange, config: JobConfig) -> TripleStore:
    store = TripleStore.create(config.store_folder, MANIFEST, receive_seed(exchange, config))
    shards = ReceiveShards(config, one_product(), MANIFEST)
    shards.setup()
    for shard in range(2):
        list(shards.process((0, 0, shard)))
    store.complete()
    return store


def test_dealt_triples_multiply(configs: dict[str, JobConfig], exchange: InMemoryExchange) -> None:
    deal(exchange, configs[DEALER])
    stores = [StoreRun(receive(exchange, configs[name]), 0) for name in configs[DEALER].parties]
    for shard, shape in enumerate(SHAPES):
        address, kind = Address("run", 0, STAGE, shard), Mul(2, (shape.rows, 1))
        parties = [AddressedRandomness(i, b"", store, address) for i, store in enumerate(stores)]
        a, b, c = (ring.total([party.correlated(kind, part) for party in parties]) for part in "abc")
        np.testing.assert_array_equal(c, a * b)


def test_a_rerun_deals_and_stores_the_same(configs: dict[str, JobConfig], exchange: InMemoryExchange) -> None:
    deal(exchange, configs[DEALER])
    sent = dict(exchange.messages)
    deal(exchange, configs[DEALER])
    assert exchange.messages == sent
    shop = configs["shop"]
    receive(exchange, shop)
    file = shop.store_folder.corrections(0, 0, 0)
    before = file.read_bytes()
    exchange.messages = {key: payload for key, payload in sent.items() if key.address.stage == dealer.SEEDS}
    receive(exchange, shop)  # the corrections are stored already, so none is received again
    assert file.read_bytes() == before


def test_the_last_party_alone_receives_corrections(configs: dict[str, JobConfig], exchange: InMemoryExchange) -> None:
    deal(exchange, configs[DEALER])
    recipients = {key.recipient for key in exchange.messages if key.address.stage == "offline.0"}
    assert recipients == {"shop"}
    assert not receive(exchange, configs["payco"]).corrections(0, 0, 0)


def test_seeds_belong_to_a_store_and_are_readable_by_the_dealer_alone(configs: dict[str, JobConfig]) -> None:
    config = configs[DEALER]
    make_dealer_seed(config)
    seeds = dealer_seeds(config)
    make_dealer_seed(config)
    assert dealer_seeds(config) == seeds
    file = config.run_folder.dealer_seed
    assert file_mode(file) == 0o600
    assert len({*seeds, file.read_bytes()}) == 3
    other_store = config.model_copy(update={"run": "store-november"})
    other_store.run_folder.path.mkdir()
    make_dealer_seed(other_store)
    assert not set(dealer_seeds(other_store)) & set(seeds)
    delete_dealer_seeds(config)
    delete_dealer_seeds(config)
    assert not file.exists()


@pytest.mark.usefixtures("exchange")
def test_a_worker_that_does_not_see_the_seed_makes_none(configs: dict[str, JobConfig]) -> None:
    """Its corrections would fit no seed that a party has."""
    config = configs[DEALER]
    with pytest.raises(StorageError, match=str(config.run_folder.dealer_seed)):
        DealShards(config, one_product(), MANIFEST.store).setup()
    assert not config.run_folder.dealer_seed.exists()


SEED = {"seed": np.arange(32, dtype=np.uint8)}
CORRECTION: Array = np.ones((2, 1), ring.DTYPE)


@pytest.mark.parametrize(
    ("seed", "corrections", "name"),
    [
        ({}, {NAME: CORRECTION}, "seed"),
        ({"seed": np.zeros(16, np.uint8)}, {NAME: CORRECTION}, "seed"),
        (SEED, {}, NAME),
        (SEED, {NAME: CORRECTION[:1]}, NAME),
        (SEED, {NAME: CORRECTION.astype(np.float64)}, NAME),
    ],
    ids=["no seed", "short seed", "no correction", "short correction", "correction of another type"],
)
def test_wrong_messages_of_the_dealer_are_refused_and_the_dealer_named(
    configs: dict[str, JobConfig], exchange: InMemoryExchange, seed: Arrays, corrections: Arrays, name: str
) -> None:
    shop = configs["shop"]
    for address, arrays in (
        (Address(shop.run, 0, dealer.SEEDS, 0), seed),
        (Address(shop.run, 0, "offline.0", 0), corrections),
    ):
        exchange.put_all([Outgoing.of(MessageKey(address, DEALER, "shop"), arrays)])
    with pytest.raises(RefusedError, match=f"{DEALER} .*'{name}'"):
        receive(exchange, shop)
    assert not shop.store_folder.manifest.exists()
