"""What a gateway takes from a peer that has a certificate: so many streams, for so long, and for which runs."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from support.fault_injection import PATIENCE, ChainWorld, chain_message, make_chain_world, wait_for
from support.raw_messages import label, parts_of, raw_client, send_raw
from support.unusual_certificates import PAST
from veilmeans.crypto.certificates import make_identity
from veilmeans.io.exchange import connections, flight_gateway
from veilmeans.io.exchange.connections import load_identity, open_gateway
from veilmeans.io.exchange.exchange import Outgoing
from veilmeans.io.exchange.flight_streams import PART_SCHEMA
from veilmeans.schemas.errors import CertificateError, recover_error
from veilmeans.schemas.message import Header

SENT = chain_message()
SOME = pa.record_batch([pa.array([b"abc"], pa.large_binary())], schema=PART_SCHEMA)


@pytest.fixture
def world(tmp_path: Path) -> ChainWorld:
    return make_chain_world(tmp_path, "gateway", parties=3)


def test_the_dealer_may_make_triple_stores_and_take_no_part_in_a_run(tmp_path: Path) -> None:
    """A refused message of the dealer does not even end the run."""
    world = make_chain_world(tmp_path, "gateway", parties=2)
    config = world.configs["payco"].model_copy(update={"dealer": "shop"})
    with open_gateway(config) as gateway:
        dealer = raw_client(config, load_identity(world.configs["shop"]))
        with pytest.raises(flight.FlightServerError, match="shop is the dealer and takes no part in run 'test'"):
            send_raw(dealer, parts_of(SENT))
        assert gateway.inbox.find(SENT.key) is None
        store = replace(SENT.key, address=replace(SENT.key.address, run="store-october"))
        assert send_raw(dealer, parts_of(Outgoing(store, SENT.payload))) == 1


Stream = tuple[flight.FlightStreamWriter, flight.FlightMetadataReader]


def open_stream(client: flight.FlightClient) -> Stream:
    """Open a stream and wait until the gateway has answered."""
    options = flight.FlightCallOptions(timeout=PATIENCE)
    writer, answers = client.do_put(flight.FlightDescriptor.for_command(b"put"), PART_SCHEMA, options)
    writer.write_metadata(pa.py_buffer(b'{"acknowledge": true}'))
    assert answers.read().to_pybytes() == b"0"
    return writer, answers


@pytest.mark.parametrize(("limit", "of"), [("STREAMS_OF_A_PEER", "shop has 3 open"), ("MOST_STREAMS", "3 streams are")])
def test_a_peer_opens_a_limited_number_of_streams(
    world: ChainWorld, monkeypatch: pytest.MonkeyPatch, limit: str, of: str
) -> None:
    monkeypatch.setattr(flight_gateway, limit, 3)
    config = world.configs["payco"]
    with open_gateway(config):
        shop, bank = (raw_client(config, load_identity(world.configs[name])) for name in ("shop", "bank"))
        streams = [open_stream(shop) for _ in range(3)]
        with pytest.raises(flight.FlightUnavailableError, match=of):
            send_raw(shop, parts_of(SENT))
        if limit == "STREAMS_OF_A_PEER":
            assert send_raw(bank, parts_of(chain_message(sender="bank"))) == 1
        for writer, answers in streams:
            writer.done_writing()
            while answers.read() is not None:
                pass
            writer.close()
        wait_for(lambda: can_send(shop))


def can_send(client: flight.FlightClient) -> bool:
    try:
        return send_raw(client, parts_of(SENT)) == 1
    except flight.FlightUnavailableError:
        return False


@pytest.mark.parametrize(
    ("change", "error", "why"),
    [
        (Path.unlink, flight.FlightServerError, "cannot be read"),
        (
            lambda file: file.write_bytes(make_identity("shop", 2).certificate),
            flight.FlightUnavailableError,
            "was replaced",
        ),
        (
            lambda file: file.write_bytes(make_identity("shop", 2, PAST).certificate),
            flight.FlightServerError,
            "expired on",
        ),
    ],
    ids=["removed", "replaced", "expired"],
)
def test_a_peer_whose_pin_has_gone_is_refused_at_once(
    world: ChainWorld,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Path], object],
    error: type[Exception],
    why: str,
) -> None:
    """Before the gateway is opened again: an open stream ends, and a new one is refused; the run does not end."""
    monkeypatch.setattr(connections, "_LOOK", PATIENCE)
    config = world.configs["payco"]
    with open_gateway(config) as gateway, closing(raw_client(config, load_identity(world.configs["shop"]))) as client:
        writer, answers = open_stream(client)
        change(config.peers["shop"].certificate)
        writer.write_metadata(pa.py_buffer(b'{"acknowledge": true}'))
        assert answers.read() is None
        with pytest.raises(error, match=why):
            writer.close()
        with pytest.raises(error, match=why) as refused:
            send_raw(client, parts_of(SENT))
        assert (error is flight.FlightServerError) == isinstance(recover_error(str(refused.value)), CertificateError)
        assert gateway.inbox.find(SENT.key) is None


def test_a_peer_that_keeps_sending_does_not_keep_a_gateway_from_closing(
    world: ChainWorld, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parts of one message, without end: a stream that outlived the gateway aborted the process at its exit."""
    monkeypatch.setattr(flight_gateway, "_UNFINISHED_TIME", 0.1)
    monkeypatch.setattr(flight_gateway, "_CLOSING_TIME", PATIENCE)
    config, begun = world.configs["payco"], threading.Event()

    def drip() -> None:
        client = raw_client(config, load_identity(world.configs["shop"]))
        writer, _ = client.do_put(flight.FlightDescriptor.for_command(b"put"), PART_SCHEMA)
        metadata = label(SENT.key, Header(60_000_000, bytes(32)))
        with suppress(flight.FlightError, pa.ArrowException, OSError):
            while True:
                writer.write_with_metadata(SOME, pa.py_buffer(metadata))
                metadata = b"{}"
                begun.set()

    with ThreadPoolExecutor(1) as pool:
        with open_gateway(config):
            sending = pool.submit(drip)
            assert begun.wait(PATIENCE)
        sending.result(PATIENCE)
    assert "holds a stream open" not in caplog.text
