"""The frame of every job: bindings, farewells, and a storage that cannot be used."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.parties import InMemoryExchange, make_configs
from support.small_kmeans import job_of
from veilmeans.io.exchange import connections
from veilmeans.io.exchange.exchange import Outgoing
from veilmeans.io.exchange.flight_gateway import Gateway
from veilmeans.pipelines.offline import run_offline
from veilmeans.pipelines.session.session import (
    FAREWELL,
    binding_of,
    exchange_farewells,
    farewell_received,
    open_session,
)
from veilmeans.schemas.address import Address
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import PeerError, RefusedError, StorageError
from veilmeans.schemas.message import MessageKey

Configs = dict[str, JobConfig]


@pytest.fixture
def configs(tmp_path: Path) -> Configs:
    return make_configs(
        tmp_path,
        3,
        kind="files",
        dealer="notary",
        triples={"store": "october"},
        kmeans=job_of(3),
        exchange={"timeout_s": 0.05},
    )


def test_the_binding_changes_with_data_job_and_seed(configs: Configs) -> None:
    bindings = [
        binding_of(configs["payco"], b"data", "job"),
        binding_of(configs["payco"], b"other", "job"),
        binding_of(configs["payco"], b"data", "other"),
        binding_of(configs["shop"], b"data", "job"),
    ]
    assert len(set(bindings)) == len(bindings)
    assert all(len(binding) == 64 for binding in bindings)


def say_farewell(exchange: InMemoryExchange, config: JobConfig, peer: str) -> None:
    key = MessageKey(Address(config.run, 1, FAREWELL, 0), peer, config.party)
    exchange.put_all([Outgoing.of(key, {"done": np.ones(1, np.uint8)})])


def test_a_party_is_finished_when_all_its_peers_have_said_farewell(configs: Configs) -> None:
    """A party that has its results comes back for its peers until then: they may have to send to it again."""
    config, exchange = configs["payco"].online(), InMemoryExchange()
    config.run_folder.path.mkdir(parents=True)
    for peer in ("shop", "bank"):
        assert not exchange_farewells(exchange, config, iteration=1)
        assert not farewell_received(config)
        say_farewell(exchange, config, peer)
    assert exchange_farewells(exchange, config, iteration=1)
    assert farewell_received(config)


def test_a_party_that_waits_in_vain_names_its_peer(configs: Configs) -> None:
    with pytest.raises(PeerError, match="shop"):
        run_offline(configs["payco"])


def test_a_refusal_that_comes_as_soon_as_the_gateway_is_open_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of an earlier attempt is."""
    config = make_configs(tmp_path, 2)["payco"]
    key = MessageKey(Address(config.run, 0, "any", 0), "shop", "payco")

    class Attacked(Gateway):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            if attacks:
                self.inbox.refuse(config.run, RefusedError("shop lied at once"))

    monkeypatch.setattr(connections, "Gateway", Attacked)
    attacks = True
    with open_session(config) as exchange, pytest.raises(RefusedError, match="shop lied at once"):
        exchange.get(key, timeout=0.0)
    attacks = False
    with open_session(config) as exchange, pytest.raises(PeerError):
        exchange.get(key, timeout=0.0)


def test_a_storage_that_is_a_file_is_refused(configs: Configs, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    config = configs["payco"].model_copy(update={"storage": tmp_path / "file"})
    with pytest.raises(StorageError, match=str(tmp_path / "file")), open_session(config):
        pass
