"""Open what a configuration names: identity, gateway, exchange. Opened once per process, never pickled."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pyarrow as pa

from veilmeans.crypto.certificates import Identity, check_certificate, check_pair
from veilmeans.crypto.pairwise_encryption import Seal
from veilmeans.io.exchange.exchange import Exchange
from veilmeans.io.exchange.file_exchange import FileExchange
from veilmeans.io.exchange.flight_exchange import Endpoint, FlightExchange
from veilmeans.io.exchange.flight_gateway import Gateway
from veilmeans.io.exchange.inbox import MessageStore
from veilmeans.io.exchange.link_shaping import Link, ShapedExchange
from veilmeans.io.exchange.tls_diagnosis import explained_handshakes
from veilmeans.io.storage.secret_files import read_secret
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import CertificateError, StorageError

_open: dict[str, Exchange] = {}
_spools: dict[str, MessageStore] = {}
_lock = threading.Lock()


def load_identity(config: JobConfig) -> Identity:
    """This party's certificate and key, checked."""
    identity = Identity(_read_certificate(config.certificate, config.party), read_secret(config.key))
    check_pair(identity, str(config.key))
    return identity


def load_peer_certificates(config: JobConfig) -> dict[str, bytes]:
    """The pinned certificates, checked."""
    return {name: _read_certificate(peer.certificate, name) for name, peer in config.peers.items()}


def open_gateway(config: JobConfig) -> Gateway:
    """This party's gateway, open until the context that it manages ends."""
    spool = MessageStore(config.storage / "inbox")
    listen = config.listen or ""
    try:
        return Gateway(config.party, listen, load_identity(config), load_peer_certificates(config), spool, config.limit)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise _cannot_listen(listen, str(error).split(". ")[0]) from None


def check_port(listen: str) -> None:
    """Refuse an address on which we cannot listen; it is bound for a moment."""
    host, _, port = listen.rpartition(":")
    try:
        kind, *_, address = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
        with closing(socket.socket(kind)) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(address)
    except (OSError, ValueError) as error:
        raise _cannot_listen(listen, getattr(error, "strerror", None) or str(error)) from None


def check_listen_address(config: JobConfig) -> None:
    """The same, of a command that opens its own gateway."""
    if config.exchange.kind == "gateway" and config.gateway == "embedded":
        check_port(config.listen or "")


def _cannot_listen(listen: str, why: str) -> StorageError:
    return StorageError(f"the gateway cannot listen on {listen}: is the port taken? ({why})")


@contextmanager
def embedded_gateway(config: JobConfig) -> Iterator[None]:
    """The gateway inside this process, if the configuration wants it so."""
    if config.exchange.kind != "gateway" or config.gateway != "embedded":
        yield
        return
    with explained_handshakes(), open_gateway(config) as gateway:
        _spools[config.listen or ""] = gateway.spool
        try:
            yield
        finally:
            del _spools[config.listen or ""]
            close_exchange(config)


def open_exchange(config: JobConfig) -> Exchange:
    """The exchange of this configuration, one for each process."""
    name = _name(config)
    with _lock:
        if name not in _open:
            _open[name] = _build(config)
        return _open[name]


def _name(config: JobConfig) -> str:
    """What an exchange depends on: who we are, who the others are, how messages travel."""
    return config.model_dump_json(exclude={"run", "engine", "triples", "kmeans", "sums"})


def close_exchange(config: JobConfig) -> None:
    with _lock:
        exchange = _open.pop(_name(config), None)
    if exchange is not None:
        exchange.close()


def _build(config: JobConfig) -> Exchange:
    identity, certificates = load_identity(config), load_peer_certificates(config)
    exchange: Exchange
    if config.exchange.kind == "gateway":
        doors = {name: Endpoint(name, peer.address or "", certificates[name]) for name, peer in config.peers.items()}
        own = Endpoint(config.party, config.listen or "", identity.certificate)
        local = _spools.get(own.address)
        exchange = FlightExchange(own, doors, identity, config.limit, config.exchange.timeout_s, local)
    else:
        seals = {name: Seal(identity, certificate) for name, certificate in certificates.items()}
        outboxes = {name: peer.outbox or "" for name, peer in config.peers.items()}
        exchange = FileExchange(config.exchange.outbox or "", outboxes, seals, config.limit)
    shape = config.exchange.shape
    if shape is not None:
        link = Link(shape.rate_mbps * 1e6, shape.round_trip_ms / 1e3)
        exchange = ShapedExchange(exchange, link, config.storage / "link.clock")
    return exchange


def _read_certificate(file: Path, owner: str) -> bytes:
    try:
        pem = file.read_bytes()
    except OSError as error:
        raise CertificateError(f"the certificate of {owner} ({file}) cannot be read: {error.strerror}") from None
    check_certificate(pem, owner, str(file))
    return pem
