"""What is fuzzed: each target has right inputs, and a function that reads a changed one as a party would.

Reading may end well, or with a VeilmeansError; anything else that is raised is a finding.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
import yaml

from veilmeans.crypto.certificates import check_certificate, make_identity
from veilmeans.crypto.he.product_parameters import SchemeParameters
from veilmeans.crypto.pairwise_encryption import PairwiseCipher
from veilmeans.io.exchange.connections import load_identity, load_peer_certificates, open_gateway
from veilmeans.io.exchange.exchange import Outgoing, read_arrays
from veilmeans.io.exchange.file_exchange import FileExchange
from veilmeans.io.exchange.flight_streams import PART_SCHEMA, split
from veilmeans.io.exchange.handshake import exchange_terms, terms_message
from veilmeans.io.exchange.inbox import MessageStore
from veilmeans.io.messages.message_log import MessageLog
from veilmeans.io.messages.transcript import Transcript, TranscriptWriter
from veilmeans.io.storage.checkpoints import Checkpoints
from veilmeans.io.storage.he_keyring import load_keyring, make_own_keys, store_peer_key
from veilmeans.io.storage.triple_store import Manifest, TripleStore
from veilmeans.pipelines.configure.agreement.signed_file import read_signed
from veilmeans.pipelines.configure.config_template import TemplateValues, write_trial
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Array
from veilmeans.schemas.config import JobConfig, load_config
from veilmeans.schemas.errors import PeerError, VeilmeansError, recover_error
from veilmeans.schemas.handshake_terms import Terms
from veilmeans.schemas.message import Header, MessageKey, open_envelope
from veilmeans.schemas.run_folder import RunFolder, StoreFolder
from veilmeans.transforms.auditing.statements import SignedStatement, compare_statement, own_statement

KEY = MessageKey(Address("first", 0, "assign.00.open", 0), "shop", "payco")
ARRAYS: dict[str, Array] = {"e": np.arange(12, dtype=np.uint64).reshape(3, 4), "o": np.arange(9, dtype=np.uint8)}
EMPTY: dict[str, Array] = {"x": np.zeros(0, np.int64)}
Read = Callable[[bytes], object]


@dataclass(frozen=True)
class Target:
    """Something that reads bytes. `make` gives right inputs and the function that reads changed ones."""

    name: str
    make: Callable[[Path, ExitStack], tuple[Sequence[bytes], Read]]


def trial_config(folder: Path, party: str = "payco") -> JobConfig:
    """A party's configuration, with keys; both parties' folders are written once."""
    if not folder.exists():
        write_trial(folder, TemplateValues(rows=10, clusters=2))
    return load_config(folder / party / "config.yaml")


def _payloads() -> list[bytes]:
    return [Outgoing.of(KEY, arrays).payload.to_pybytes() for arrays in (ARRAYS, EMPTY)]


def messages(_folder: Path, _: ExitStack) -> tuple[Sequence[bytes], Read]:
    """The arrays of a message whose digest is right: its sender made it so."""
    return _payloads(), lambda content: read_arrays(KEY, pa.py_buffer(content))


def envelopes(_folder: Path, _: ExitStack) -> tuple[Sequence[bytes], Read]:
    """A message's file in an inbox."""
    right = [Header.of(pa.py_buffer(each)).pack() + each for each in _payloads()]
    return right, lambda content: open_envelope(KEY, pa.py_buffer(content))


def message_keys(_folder: Path, _: ExitStack) -> tuple[Sequence[bytes], Read]:
    """The key of a message."""
    return [KEY.to_json().encode()], MessageKey.parse


def message_logs(folder: Path, _: ExitStack) -> tuple[Sequence[bytes], Read]:
    """The log of an inbox, as an earlier process left it."""
    file = folder / "inbox" / "first" / "0" / "messages.log"
    log = MessageLog(file)
    for payload in _payloads():
        log.append(KEY, Header.of(pa.py_buffer(payload)), pa.py_buffer(payload))
    log.close()

    def read(content: bytes) -> None:
        file.write_bytes(content)
        inbox = MessageStore(folder / "inbox")
        found = inbox.find(KEY)
        if found is not None:
            read_arrays(KEY, found)

    return [file.read_bytes()], read


def labels(folder: Path, stack: ExitStack) -> tuple[Sequence[bytes], Read]:
    """The metadata of a part, at a real gateway with mutual TLS."""
    config, shop = trial_config(folder / "trial"), trial_config(folder / "trial", "shop")
    gateway = stack.enter_context(open_gateway(config.model_copy(update={"listen": "127.0.0.1:0"})))
    identity = load_identity(shop)
    client = flight.FlightClient(
        f"grpc+tls://127.0.0.1:{gateway.port}",
        tls_root_certs=config.certificate.read_bytes(),
        cert_chain=identity.certificate,
        private_key=identity.key,
        override_hostname="payco",
    )
    payload = pa.py_buffer(_payloads()[0])
    (part,) = split(payload)
    header = Header.of(payload)
    label = {"key": KEY.to_json(), "size": header.size, "sha256": header.digest.hex(), "acknowledge": True}

    def read(content: bytes) -> None:
        options = flight.FlightCallOptions(timeout=_ANSWER_TIME)
        writer, answers = client.do_put(flight.FlightDescriptor.for_command(b"put"), PART_SCHEMA, options)
        try:
            with writer:
                writer.write_with_metadata(part, pa.py_buffer(content))
                writer.done_writing()
                while answers.read() is not None:
                    pass
        except flight.FlightUnavailableError:
            return  # too many messages of runs that nobody has begun
        except (flight.FlightError, pa.ArrowException) as error:
            if recover_error(str(error)) is None:
                raise
        finally:
            gateway.inbox.drop_messages("first", None)

    return [json.dumps(label).encode(), b"{}", b'{"acknowledge": true}'], read


_ANSWER_TIME = 10.0  # seconds for an answer of a gateway


def outbox_files(folder: Path, _: ExitStack) -> tuple[Sequence[bytes], Read]:
    """A message in a peer's outbox, encrypted for us."""
    config, shop = trial_config(folder / "trial"), trial_config(folder / "trial", "shop")

    def exchange(me: JobConfig, own: Path, peer: str, other: Path) -> FileExchange:
        cipher = PairwiseCipher(load_identity(me), load_peer_certificates(me)[peer])
        return FileExchange(str(own), {peer: str(other)}, {peer: cipher}, 1 << 20)

    ours, theirs = folder / "payco-outbox", folder / "shop-outbox"
    exchange(shop, theirs, "payco", ours).put_all([Outgoing.of(KEY, ARRAYS)])
    (file,) = theirs.rglob("*.msg")
    reader = exchange(config, ours, "shop", theirs)

    def read(content: bytes) -> None:
        file.write_bytes(content)
        reader.get(KEY, 1.0)

    return [file.read_bytes()], read


class _OneMessage:
    """An exchange on which a peer has sent terms, and nothing else."""

    def __init__(self, payload: bytes) -> None:
        self._payload = pa.py_buffer(payload)

    def put_all(self, messages: Sequence[Outgoing]) -> None: ...

    def flush(self) -> None: ...

    def get(self, key: MessageKey, timeout: float) -> pa.Buffer:
        del timeout
        if key.address.shard:
            raise PeerError("no confirmation")
        return self._payload

    def drop_messages(self, run: str, before: int | None = None) -> int:
        del run, before
        return 0

    def forget_refusal(self, run: str) -> None: ...

    def close(self) -> None: ...


def handshakes(folder: Path, _: ExitStack) -> tuple[Sequence[bytes], Read]:
    """A peer's terms."""
    agreed: dict[str, Any] = {"protocol version": 3, "parties": ["payco", "shop"], "rows": 10, "ranges": {"a": [0, 1]}}
    mine = Terms(agreed, {"ids": "ab", "costs": {"encrypt": 1.5e-5}}, "cd")

    def read(content: bytes) -> None:
        arrays = {"terms": np.frombuffer(content, np.uint8)}
        exchange = _OneMessage(Outgoing.of(KEY, arrays).payload.to_pybytes())
        exchange_terms(exchange, "payco", "first", {"shop": mine}, RunFolder(folder / "run"), 1.0, grace=0.0)

    return [bytes(read_arrays(KEY, terms_message(KEY, mine).payload)["terms"])], read


def _key_folder(folder: Path) -> StoreFolder:
    (folder / "store").mkdir()
    return StoreFolder(folder / "store")


def public_keys(folder: Path, _: ExitStack) -> tuple[Sequence[bytes], Read]:
    """A peer's public key for ciphertexts."""
    store, cipher = _key_folder(folder), SchemeParameters("okamoto-uchiyama", 2048)
    right = json.dumps(make_own_keys(store, cipher).to_json()).encode()
    return [right], lambda content: store_peer_key(store, "shop", content, cipher)


def stored_keys(folder: Path, _: ExitStack) -> tuple[Sequence[bytes], Read]:
    """A party's own key, and its peer's, on its disk."""
    from veilmeans.schemas.party import Party

    store, cipher = _key_folder(folder), SchemeParameters("okamoto-uchiyama", 2048)
    store_peer_key(store, "shop", json.dumps(make_own_keys(store, cipher).to_json()).encode(), cipher)
    files = store.he_key, store.peer_key("shop")
    right = [file.read_bytes() for file in files]

    def read(content: bytes) -> None:
        for file, good in zip(files, right, strict=True):
            file.write_bytes(content)
            try:
                load_keyring.__wrapped__(store, Party(0, ("payco", "shop")))
            finally:
                file.write_bytes(good)

    return right, read


def certificates(_folder: Path, _: ExitStack) -> tuple[Sequence[bytes], Read]:
    """A peer's certificate."""
    return [make_identity("shop", 7).certificate], lambda content: check_certificate(content, "shop", "shop.crt")


def configs(folder: Path, _: ExitStack) -> tuple[Sequence[bytes], Read]:
    """A configuration."""
    trial_config(folder / "trial")
    file = folder / "trial" / "payco" / "config.yaml"
    right = file.read_bytes()
    plain = yaml.safe_dump(yaml.safe_load(right)).encode()

    def read(content: bytes) -> None:
        file.write_bytes(content)
        load_config(file)

    return [right, plain], read


def stores(folder: Path, _: ExitStack) -> tuple[Sequence[bytes], Read]:
    """A triple store: its manifest, its claims and its corrections."""
    store = TripleStore.create(StoreFolder(folder / "store"), Manifest("store", 2, 1, 10, "plan"), bytes(32))
    store.write_corrections(0, 0, 0, ARRAYS)
    store.complete()
    store.claim(0, "first", "binding")
    files = [file for file in sorted((folder / "store").rglob("*")) if file.is_file() and file.name != "seed"]
    right = [file.read_bytes() for file in files]

    def read(content: bytes) -> None:
        for file, good in zip(files, right, strict=True):
            file.write_bytes(content)
            try:
                opened = TripleStore.open(StoreFolder(folder / "store"))
                opened.check_suffices(1, 1, "plan")
                opened.find_claim("first", "binding")
                opened.corrections(0, 0, 0)
            except VeilmeansError:
                continue
            finally:
                file.write_bytes(good)

    return right, read


def checkpoints(folder: Path, _: ExitStack) -> tuple[Sequence[bytes], Read]:
    """A checkpoint."""
    kept = Checkpoints(RunFolder(folder / "run"), bytes(32))
    kept.write(1, ARRAYS)
    file = kept.folder.checkpoint(1)

    def read(content: bytes) -> None:
        file.write_bytes(content)
        kept.read(1)

    return [file.read_bytes()], read


def transcripts(folder: Path, _: ExitStack) -> tuple[Sequence[bytes], Read]:
    """The lines of a transcript."""
    TranscriptWriter(folder / "transcript").record([(KEY, Header(3, bytes(32)))], broadcast=True)
    (file,) = (folder / "transcript" / "0").iterdir()

    def read(content: bytes) -> None:
        file.write_bytes(content)
        transcript = Transcript(folder / "transcript", "first")
        transcript.links("payco", "shop", b"beginning")
        transcript.echoes(0, ("payco", "shop"))

    return [file.read_bytes() * 2], read


def statements(folder: Path, _: ExitStack) -> tuple[Sequence[bytes], Read]:
    """A peer's signed statement, as it comes with a farewell: content and signature are one."""
    config, shop = trial_config(folder / "trial"), trial_config(folder / "trial", "shop")
    statement = own_statement(shop, [Transcript(folder / "transcript", "first")])
    signature = len(statement.signature)
    certificate = load_peer_certificates(config)["shop"]

    def read(content: bytes) -> None:
        parts = {"statement": content[signature:], "signature": content[:signature]}
        arrays = {name: np.frombuffer(part, np.uint8) for name, part in parts.items()}
        received = SignedStatement.of_message("shop", arrays)
        compare_statement(config, [Transcript(folder / "transcript", "first")], "shop", received, certificate)

    return [statement.signature + statement.content], read


def signed_files(folder: Path, _: ExitStack) -> tuple[Sequence[bytes], Read]:
    """An invitation or a proposal."""
    file = folder / "file.json"
    body = {"kind": "invitation", "body": {"from": "shop", "members": {}}, "signature": "00" * 70}

    def read(content: bytes) -> None:
        file.write_bytes(content)
        read_signed(file)

    return [json.dumps(body).encode()], read


TARGETS = tuple(
    Target(make.__name__, make)
    for make in (
        *(messages, envelopes, message_keys, message_logs, labels, outbox_files, handshakes, public_keys, stored_keys),
        *(certificates, configs, stores, checkpoints, transcripts, statements, signed_files),
    )
)
