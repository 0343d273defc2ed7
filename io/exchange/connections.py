"""A party's identity, gateway, exchange and shared files, opened from its configuration; never pickled.

A process that can read the party's seed is its driver, its gateway, or a worker on the same host. One that cannot is a
worker that sees nothing but `shared`: it shows its token to the party's gateway (`io.exchange.worker_gateway`).
"""

import json
import logging
import os
import resource
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

import pyarrow as pa
import pyarrow.flight as flight

from veilmeans.crypto import prg
from veilmeans.crypto.certificates import Identity, check_certificate, check_pair
from veilmeans.crypto.pairwise_encryption import PairwiseCipher
from veilmeans.io.exchange.exchange import Exchange
from veilmeans.io.exchange.flight_exchange import Endpoint, FlightExchange
from veilmeans.io.exchange.flight_gateway import Gateway
from veilmeans.io.exchange.inbox import MessageStore
from veilmeans.io.exchange.link_shaping import Link, ShapedExchange
from veilmeans.io.exchange.worker_gateway import KEYS, WorkerGateway, WorkerTranscript
from veilmeans.io.files.fresh_files import FreshFiles
from veilmeans.io.files.party_files import attach, detach
from veilmeans.io.files.secret_files import read_secret
from veilmeans.io.messages.transcript import TranscriptWriter, open_transcript
from veilmeans.io.storage.run_token import RunToken, find_token
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.config_fields import connection_fields
from veilmeans.schemas.errors import CertificateError, ConfigError, StorageError, VeilmeansError

_exchanges: dict[str, Exchange] = {}  # the open exchanges of this process, by what they depend on (`_exchange_name`)
_local_inboxes: dict[str, MessageStore] = {}  # inboxes of gateways in this process, by the gateway's address
_jobs: dict[str, int] = {}  # the exchanges of jobs that run in this process (`_exchange_name`), and its process id
_attached: dict[Path, tuple[str, tuple[str, ...]]] = {}  # what `attach_shared` has attached, by its path
_keys: dict[tuple[str, str, str], dict[str, bytes]] = {}  # what a worker got of its gateway: by exchange, run, binding
_lock = threading.Lock()
_MOST_DESCRIPTORS = 1 << 16
_LOOK = 1.0  # seconds after which a gateway looks whether its certificates have been replaced
log = logging.getLogger(__name__)


def load_identity(config: JobConfig) -> Identity:
    """Load this party's certificate and key, and check them."""
    identity = Identity(_read_certificate(config.certificate, config.party), read_secret(config.key))
    check_pair(identity, str(config.key))
    return identity


def load_peer_certificates(config: JobConfig) -> dict[str, bytes]:
    """Load the pinned certificates of all peers, and check them."""
    return {name: _read_certificate(peer.certificate, name) for name, peer in config.peers.items()}


class CurrentPins:
    """A party's identity and its peers' certificates as their files are now."""

    def __init__(self, config: JobConfig) -> None:
        self._identity = FreshFiles([config.certificate, config.key], partial(load_identity, config))
        self._peers = {
            name: FreshFiles([peer.certificate], partial(_read_certificate, peer.certificate, name))
            for name, peer in config.peers.items()
        }
        self._party = config.party

    def identity(self) -> Identity:
        return self._identity.content()

    def certificate(self, name: str) -> bytes:
        return self.identity().certificate if name == self._party else self._peers[name].content()

    def state(self) -> object:
        """Return a value that is another one when a file was replaced or removed."""
        return self._identity.state(), [each.state() for each in self._peers.values()]

    def valid(self) -> dict[str, bytes]:
        """Return the peers' certificates, without those that are not there or not valid now."""
        found = {}
        for name in self._peers:
            with suppress(CertificateError):
                found[name] = self.certificate(name)
        return found


class CurrentCiphers(Mapping[str, PairwiseCipher]):
    """The cipher of each peer; a CertificateError for one whose certificate is not pinned or not valid now."""

    def __init__(self, pins: CurrentPins, peers: Sequence[str]) -> None:
        self._pins, self._peers = pins, peers
        self._made: dict[str, tuple[bytes, bytes, PairwiseCipher]] = {}

    def __getitem__(self, peer: str) -> PairwiseCipher:
        identity, certificate = self._pins.identity(), self._pins.certificate(peer)
        made = self._made.get(peer)
        if made is None or made[:2] != (identity.key, certificate):
            made = self._made[peer] = identity.key, certificate, PairwiseCipher(identity, certificate)
        return made[2]

    def __iter__(self) -> Iterator[str]:
        return iter(self._peers)

    def __len__(self) -> int:
        return len(self._peers)


class PartyGateway:
    """A party's gateway, opened again on its port when a certificate is replaced: gRPC reads them when it is opened.

    Peers notice nothing but a broken connection. A peer whose pin was removed or has expired cannot connect any more.
    """

    def __init__(self, config: JobConfig, inbox: MessageStore) -> None:
        self.inbox, self._config, self._pins = inbox, config, CurrentPins(config)
        load_peer_certificates(config)  # fails if one is not valid
        self._state = self._pins.state()
        self._server = self._open(config.listen or "")
        self.port: int = self._server.port
        self._ended = threading.Event()
        self._watching = threading.Thread(target=self._watch, name=f"pins-{config.party}", daemon=True)

    def __enter__(self) -> Self:
        self._server.__enter__()
        self._watching.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._ended.set()
        self._watching.join()
        self._server.__exit__(*details)

    def _watch(self) -> None:
        """Open the gateway again after each change of a certificate."""
        while not self._ended.wait(_LOOK):
            state = self._pins.state()
            if state != self._state and self._renew():
                self._state = state

    def _renew(self) -> bool:
        """Open the gateway again, unless this party's own certificate and key are not complete yet."""
        host = (self._config.listen or "").rpartition(":")[0]
        try:
            self._pins.identity()
            self._server.__exit__()
            self._server = self._open(f"{host}:{self.port}").__enter__()
        except VeilmeansError as error:
            log.error("certificates have changed, and are not in use yet: %s", error.sentence)
            return False
        log.info("the gateway of %s uses the certificates that are pinned now", self._config.party)
        return True

    def _open(self, listen: str) -> Gateway:
        config, identity, limit = self._config, self._pins.identity(), self._config.max_message_bytes
        peers = self._pins.valid()
        check_pin = partial(_check_pin, self._pins, peers)
        with _listening(listen):
            gateway = Gateway(config.party, listen, identity, peers, self.inbox, limit, config.dealer, check_pin)
        if config.workers is not None:
            gateway.beside = _open_worker_gateway(config, config.workers.listen, identity, self.inbox)
        return gateway


def open_gateway(config: JobConfig, reruns: Sequence[str] = ()) -> PartyGateway:
    """Open this party's gateway, for peers and for workers; it serves until the context that it manages ends.

    `reruns`: runs whose earlier refusals are forgotten, before a peer can send a message that is refused now.
    """
    raise_descriptor_limit()
    inbox = MessageStore(config.storage_folder.inbox)
    for run in reruns:
        inbox.forget_refusal(run)
    return PartyGateway(config, inbox)


def _open_worker_gateway(config: JobConfig, listen: str, identity: Identity, inbox: MessageStore) -> WorkerGateway:
    """Open the side of the gateway that workers see; their messages are forwarded when they come."""
    forward, secrets = _connect(config, identity, inbox, late=False), GatewaySecrets(config)
    with _listening(listen):
        return WorkerGateway(config, listen, identity, inbox, forward, secrets)


@contextmanager
def _listening(listen: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, pa.ArrowException) as error:
        raise _cannot_listen(listen, str(error).split(". ")[0]) from None


def _check_pin(pins: CurrentPins, served: Mapping[str, bytes], peer: str) -> None:
    """Refuse a peer whose certificate was removed or has expired; one that was replaced has to connect again."""
    if pins.certificate(peer) != served.get(peer):
        raise flight.FlightUnavailableError(f"the certificate of {peer} was replaced: connect with the new one")


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
    if is_worker(config):
        return _connect_worker(config, find_token(config))
    late = _jobs.get(_exchange_name(config)) == os.getpid()
    return _connect(config, load_identity(config), _local_inboxes.get(config.listen or ""), late)


def _connect(config: JobConfig, identity: Identity, local: MessageStore | None, late: bool) -> Exchange:
    """Connect to the peers as the party itself."""
    certificates = load_peer_certificates(config)
    exchange: Exchange
    if config.exchange.kind == "gateway":
        peers = {name: Endpoint(name, peer.address or "", certificates[name]) for name, peer in config.peers.items()}
        own = Endpoint(config.party, config.listen or "", identity.certificate)
        limit, timeout, dealer = config.max_message_bytes, config.exchange.timeout_s, config.party == config.dealer
        exchange = FlightExchange(own, peers, identity, limit, timeout, local, late, dealer, CurrentPins(config))
    else:
        from veilmeans.io.exchange.file_exchange import FileExchange

        ciphers = CurrentCiphers(CurrentPins(config), list(certificates))
        outboxes = {name: peer.outbox or "" for name, peer in config.peers.items()}
        exchange = FileExchange(config.exchange.outbox or "", outboxes, ciphers, config.max_message_bytes)
    shape = config.exchange.shape
    if shape is not None:
        exchange = ShapedExchange(exchange, Link.from_config(shape), config.storage_folder.link_clock, late)
    return exchange


# workers that see nothing but `shared`
def is_worker(config: JobConfig) -> bool:
    """Return whether this process is a worker that cannot see the party's own files."""
    return config.shared is not None and not config.seed.exists()


def _connect_worker(config: JobConfig, token: RunToken) -> FlightExchange:
    """Connect to the own gateway, which forwards to all peers."""
    if config.workers is None:
        raise ConfigError(
            f"a worker of {config.party} cannot read {config.seed}, and the configuration has no `workers`: let it "
            "reach the gateway by workers.listen, or mount the party's files"
        )
    address = config.workers.address or config.workers.listen
    own = Endpoint(token.party, address, token.certificate.encode())
    limit, timeout = config.max_message_bytes, config.exchange.timeout_s
    return FlightExchange(own, dict.fromkeys(config.peers, own), token, limit, timeout)


@dataclass(frozen=True)
class GatewaySecrets:
    """The secrets that the gateway derives for workers from the party's seed."""

    config: JobConfig

    def check(self, token: RunToken) -> None:
        if token.party != self.config.party or not token.proven_by(read_secret(self.config.seed)):
            raise ConfigError(
                f"the token of a worker was not made by {self.config.party}, or its seed has changed: make a new one "
                "with `veilmeans config token`"
            )
        if token.is_revoked(self.config.storage_folder.run(token.run)):
            raise ConfigError(
                f"the token of this worker was revoked: make a new one of run {token.run!r} with "
                "`veilmeans config token`"
            )

    def keys(self, run: str, binding: str) -> dict[str, str]:
        seed = read_secret(self.config.seed)
        return {"run": _run_seed(seed, run, binding).hex(), "files": _files_key(seed).hex()}


def run_seed(config: JobConfig, binding: str) -> bytes:
    """Derive the secret of a run, from which its masks and the key of its files are derived; a worker asks for it."""
    if is_worker(config):
        return _worker_keys(config, binding)["run"]
    return _run_seed(read_secret(config.seed), config.run, binding)


def _run_seed(seed: bytes, run: str, binding: str) -> bytes:
    return prg.derive(seed, f"run {run} {binding}")


def _files_key(seed: bytes) -> bytes:
    return prg.derive(seed, "shared files")


def _worker_keys(config: JobConfig, binding: str) -> dict[str, bytes]:
    """Ask the gateway for keys, in hexadecimal there; once in a process."""
    name = (_exchange_name(config), config.run, binding)
    if name not in _keys:
        exchange = open_exchange(config)
        if not isinstance(exchange, FlightExchange):
            raise TypeError("a worker's exchange is its gateway")
        answer = json.loads(exchange.ask_own(KEYS, {"run": config.run, "binding": binding}))
        _keys[name] = {kind: bytes.fromhex(key) for kind, key in answer.items()}
    return _keys[name]


def attach_shared(config: JobConfig) -> None:
    """Let the paths of this party's files stand for what they are: files on this disk, or sealed ones in `shared`."""
    places = {config.storage: config.shared, Path(config.scratch or ""): config.scratch}
    for path, place in places.items():
        if place is None or (path != config.storage and "://" not in place):
            detach(path)
            _attached.pop(path, None)
        elif _attached.get(path) != (place, config.beam.options):
            from veilmeans.io.files.shared_files import SharedFiles, cache_of_host, open_store

            key = _worker_keys(config, "")["files"] if is_worker(config) else _files_key(read_secret(config.seed))
            store, patience = open_store(place, config.beam.options), config.exchange.timeout_s
            attach(path, SharedFiles(path, store, key, place, patience, cache_of_host()))
            _attached[path] = place, config.beam.options


def transcript_of(config: JobConfig, opening: str, exchange: Exchange) -> "TranscriptWriter | WorkerTranscript":
    """The writer of the run's transcript: of this process, or for a worker the gateway."""
    if is_worker(config) and isinstance(exchange, FlightExchange):
        return WorkerTranscript(exchange, config.run, opening)
    return open_transcript(config.run_folder.transcript(opening), config.audit.keep)


def _read_certificate(file: Path, owner: str) -> bytes:
    try:
        pem = file.read_bytes()
    except OSError as error:
        raise CertificateError(f"the certificate of {owner} ({file}) cannot be read: {error.strerror}") from None
    check_certificate(pem, owner, str(file))
    return pem
