"""A party's identity, gateway and exchange, opened from its configuration: once per process, never pickled."""

import os
import resource
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import pyarrow as pa

from veilmeans.crypto.certificates import Identity, check_certificate, check_pair
from veilmeans.crypto.pairwise_encryption import PairwiseCipher
from veilmeans.io.exchange.exchange import Exchange
from veilmeans.io.exchange.flight_exchange import Endpoint, FlightExchange
from veilmeans.io.exchange.flight_gateway import Gateway
from veilmeans.io.exchange.inbox import MessageStore
from veilmeans.io.exchange.link_shaping import Link, ShapedExchange
from veilmeans.io.storage.secret_files import read_secret
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.config_fields import connection_fields
from veilmeans.schemas.errors import CertificateError, StorageError

_exchanges: dict[str, Exchange] = {}  # the open exchanges of this process, by what they depend on (`_exchange_name`)
_local_inboxes: dict[str, MessageStore] = {}  # inboxes of gateways in this process, by the gateway's address
_jobs: dict[str, int] = {}  # the exchanges of jobs that run in this process (`_exchange_name`), and its process id
_lock = threading.Lock()
_MOST_DESCRIPTORS = 1 << 16


def load_identity(config: JobConfig) -> Identity:
    """Load this party's certificate and key, and check them."""
    identity = Identity(_read_certificate(config.certificate, config.party), read_secret(config.key))
    check_pair(identity, str(config.key))
    return identity


def load_peer_certificates(config: JobConfig) -> dict[str, bytes]:
    """Load the pinned certificates of all peers, and check them."""
    return {name: _read_certificate(peer.certificate, name) for name, peer in config.peers.items()}


def open_gateway(config: JobConfig, reruns: Sequence[str] = ()) -> Gateway:
    """Open this party's gateway; it serves until the context that it manages ends.

    `reruns`: runs whose earlier refusals are forgotten, before a peer can send a message that is refused now.
    """
    raise_descriptor_limit()
    inbox = MessageStore(config.storage_folder.inbox)
    for run in reruns:
        inbox.forget_refusal(run)
    listen = config.listen or ""
    try:
        identity, peers, limit = load_identity(config), load_peer_certificates(config), config.max_message_bytes
        check_pin = partial(_check_pin, config, peers)
        return Gateway(config.party, listen, identity, peers, inbox, limit, config.dealer, check_pin)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise _cannot_listen(listen, str(error).split(". ")[0]) from None


def _check_pin(config: JobConfig, pinned: Mapping[str, bytes], peer: str) -> None:
    """Refuse a peer whose certificate was removed or replaced since the gateway began to serve, or has expired."""
    if peer in pinned and _read_certificate(config.peers[peer].certificate, peer) != pinned[peer]:
        file = config.peers[peer].certificate
        raise CertificateError(f"{file} has changed since the gateway of {config.party} was started: restart it")


def raise_descriptor_limit() -> None:
    """Allow this process as many open files as the system lets it have, up to 65,536.

    Every connection has a descriptor, also a stranger's until its TLS handshake fails or times out (gRPC: two minutes);
    1,024, the usual soft limit, are soon used up.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def check_port(listen: str) -> None:
    """Refuse an address on which this party cannot listen; it is bound for a moment."""
    host, _, port = listen.rpartition(":")
    try:
        kind, *_, address = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
        with closing(socket.socket(kind)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (OSError, ValueError) as error:
        raise _cannot_listen(listen, getattr(error, "strerror", None) or str(error)) from None


def check_listen_address(config: JobConfig) -> None:
    """Refuse a configuration whose embedded gateway could not listen."""
    if config.exchange.kind == "gateway" and config.gateway == "embedded":
        check_port(config.listen or "")


def _cannot_listen(listen: str, why: str) -> StorageError:
    return StorageError(f"the gateway cannot listen on {listen}: is the port taken? ({why})")


@contextmanager
def running_job(config: JobConfig, runs: Sequence[str] = ()) -> Iterator[None]:
    """Declare that this process runs a job, and run its gateway here if the configuration says `gateway: embedded`.

    `runs`: the runs to which the job's messages belong; refusals of an earlier attempt at them are forgotten. If this
    process dies, the job is rerun and makes its messages again, so they need not be acknowledged at once
    (`io.exchange.outbox`).
    """
    name = _exchange_name(config)
    close_exchange(config)  # one that was opened before was not a job's
    _jobs[name] = os.getpid()
    try:
        with _embedded_gateway(config, runs):
            yield
    finally:
        close_exchange(config)
        del _jobs[name]


@contextmanager
def _embedded_gateway(config: JobConfig, runs: Sequence[str]) -> Iterator[None]:
    if config.exchange.kind != "gateway" or config.gateway != "embedded":
        for run in runs:
            open_exchange(config).forget_refusal(run)
        yield
        return
    with open_gateway(config, runs) as gateway:
        _local_inboxes[config.listen or ""] = gateway.inbox
        try:
            yield
        finally:
            del _local_inboxes[config.listen or ""]
            close_exchange(config)


def open_exchange(config: JobConfig) -> Exchange:
    """Return the exchange of this configuration; a process has only one."""
    name = _exchange_name(config)
    with _lock:
        if name not in _exchanges:
            _exchanges[name] = _build_exchange(config)
        return _exchanges[name]


def _exchange_name(config: JobConfig) -> str:
    """Return all that an exchange depends on: this party, its peers, the way of the messages."""
    return config.model_dump_json(include=connection_fields(JobConfig))


def close_exchange(config: JobConfig) -> None:
    """Close the exchange of this configuration, if it is open."""
    with _lock:
        exchange = _exchanges.pop(_exchange_name(config), None)
    if exchange is not None:
        exchange.close()


def _build_exchange(config: JobConfig) -> Exchange:
    identity, certificates = load_identity(config), load_peer_certificates(config)
    late = _jobs.get(_exchange_name(config)) == os.getpid()
    exchange: Exchange
    if config.exchange.kind == "gateway":
        peers = {name: Endpoint(name, peer.address or "", certificates[name]) for name, peer in config.peers.items()}
        own = Endpoint(config.party, config.listen or "", identity.certificate)
        local = _local_inboxes.get(own.address)
        limit, timeout, dealer = config.max_message_bytes, config.exchange.timeout_s, config.party == config.dealer
        exchange = FlightExchange(own, peers, identity, limit, timeout, local, late, dealer)
    else:
        from veilmeans.io.exchange.file_exchange import FileExchange

        ciphers = {name: PairwiseCipher(identity, certificate) for name, certificate in certificates.items()}
        outboxes = {name: peer.outbox or "" for name, peer in config.peers.items()}
        exchange = FileExchange(config.exchange.outbox or "", outboxes, ciphers, config.max_message_bytes)
    shape = config.exchange.shape
    if shape is not None:
        exchange = ShapedExchange(exchange, Link.from_config(shape), config.storage_folder.link_clock, late)
    return exchange


def _read_certificate(file: Path, owner: str) -> bytes:
    try:
        pem = file.read_bytes()
    except OSError as error:
        raise CertificateError(f"the certificate of {owner} ({file}) cannot be read: {error.strerror}") from None
    check_certificate(pem, owner, str(file))
    return pem
