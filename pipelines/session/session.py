"""What every job of a party does around its pipeline: take the seat, shake hands, say farewell."""

import hmac
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from veilmeans.crypto import prg
from veilmeans.io.exchange.connections import embedded_gateway, open_exchange
from veilmeans.io.exchange.exchange import Exchange, Outgoing, get_arrays
from veilmeans.io.storage.atomic_files import disk_error
from veilmeans.io.storage.secret_files import read_secret
from veilmeans.schemas.address import Address
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import PeerError
from veilmeans.schemas.message import MessageKey

log = logging.getLogger(__name__)
FAREWELL = "farewell"


@contextmanager
def open_session(config: JobConfig) -> Iterator[Exchange]:
    """The party's gateway is open and its exchange connected."""
    try:
        config.run_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise disk_error(config.run_folder, error) from None
    with embedded_gateway(config):
        exchange = open_exchange(config)
        exchange.forget_refusal(config.run)
        yield exchange


def binding_of(config: JobConfig, digest: bytes, job: str) -> str:
    """A keyed digest of data and job: equal if they are equal, and telling nothing to who lacks the seed."""
    key = prg.derive(read_secret(config.seed), "binding")
    return hmac.digest(key, digest + job.encode(), "sha256").hex()


def exchange_farewells(exchange: Exchange, config: JobConfig, iteration: int, patience: float = 0.0) -> bool:
    """Tell the peers that we have what we need, wait until they have, drop the run's messages; whether all have.

    A party must not close its gateway while a peer may still have to send again. `patience`: for how many seconds
    longer than configured it may be busy.
    """
    where = Address(config.run, iteration, FAREWELL, 0)
    nothing = {"done": np.ones(1, np.uint8)}
    for peer in config.peers:
        with suppress(PeerError):  # a peer that heard us before may be gone; then its own farewell is here
            exchange.put_all([Outgoing.of(MessageKey(where, config.party, peer), nothing)])
    try:
        for peer in config.peers:
            get_arrays(exchange, MessageKey(where, peer, config.party), config.exchange.timeout_s + patience)
    except PeerError as error:
        log.warning("our result is complete, but a peer has not said farewell: %s", error.sentence)
        return False
    _farewell_mark(config).touch()
    exchange.collect(config.run, before=iteration)
    return True


def farewell_received(config: JobConfig) -> bool:
    """Whether every member of the run has said farewell: nobody needs us any more."""
    done = _farewell_mark(config).exists()
    if done:
        log.info("run %s is finished already", config.run)
    return done


def _farewell_mark(config: JobConfig) -> Path:
    return config.run_folder / "farewell"
