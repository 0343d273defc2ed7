"""The frame of every job of a party: its gateway and exchange, the binding of a run, the farewell."""

import hmac
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import numpy as np

from veilmeans.crypto import prg
from veilmeans.io.exchange.connections import load_peer_certificates, open_exchange, running_job
from veilmeans.io.exchange.exchange import Exchange, Outgoing, deliver_now, get_arrays
from veilmeans.io.files.atomic_files import make_private_folder
from veilmeans.io.files.secret_files import read_secret
from veilmeans.io.messages.transcript import Transcript
from veilmeans.schemas.address import Address
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import PeerError
from veilmeans.schemas.message import MessageKey
from veilmeans.transforms.auditing.statements import SignedStatement, compare_statement, own_statement

log = logging.getLogger(__name__)
FAREWELL = "farewell"


@contextmanager
def open_session(config: JobConfig, *others: str) -> Iterator[Exchange]:
    """Open the party's gateway and connect its exchange, for as long as the job runs.

    `others`: runs to which the job's messages belong beside the configured one.
    """
    make_private_folder(config.run_folder.path)
    with running_job(config, (config.run, *others)):
        yield open_exchange(config)


def binding_of(config: JobConfig, digest: bytes, job: str) -> str:
    """A keyed digest of data and job: it reveals nothing without the seed, and changes when they do."""
    key = prg.derive(read_secret(config.seed), "binding")
    return hmac.digest(key, digest + job.encode(), "sha256").hex()


def farewells(config: JobConfig, iteration: int, transcripts: Sequence[Transcript] = ()) -> list[Outgoing]:
    """This party's farewell to each peer, with its signed statement on the messages of these transcripts."""
    where, content = Address(config.run, iteration, FAREWELL, 0), {"done": np.ones(1, np.uint8)}
    content |= own_statement(config, transcripts).arrays() if transcripts else {}
    return [Outgoing.of(MessageKey(where, config.party, peer), content) for peer in config.peers]


def exchange_farewells(
    exchange: Exchange,
    config: JobConfig,
    iteration: int,
    extra_timeout_s: float = 0.0,
    transcripts: Sequence[Transcript] = (),
) -> bool:
    """Exchange farewells with all peers, then drop the run's messages; return whether all peers have said farewell.

    The peers' statements on what was sent and received are compared with this party's `transcripts`, first of all.

    A party must not close its gateway while a peer may still have to send again. `extra_timeout_s`: seconds by which a
    peer may be busy for longer than configured.
    """
    where = Address(config.run, iteration, FAREWELL, 0)
    for message in farewells(config, iteration, transcripts):
        with suppress(PeerError):  # a peer that heard us before may be gone; then its own farewell is here
            deliver_now(exchange, [message])
    try:
        for peer in config.peers:
            key = MessageKey(where, peer, config.party)
            said = get_arrays(exchange, key, config.exchange.timeout_s + extra_timeout_s)
            if transcripts:
                statement, certificate = SignedStatement.of_message(peer, said), load_peer_certificates(config)[peer]
                compare_statement(config, transcripts, peer, statement, certificate)
    except PeerError as error:
        log.warning("our result is complete, but a peer has not said farewell: %s", error.sentence)
        return False
    config.run_folder.farewell.touch(mode=0o600)
    exchange.drop_messages(config.run, before=iteration)
    return True


def farewell_received(config: JobConfig) -> bool:
    """True if every member of the run has said farewell: no peer needs this party any more."""
    done = config.run_folder.farewell.exists()
    if done:
        log.info("run %s is finished already", config.run)
    return done
