"""Messages as they are on the wire, for tests that send what no party would."""

import json
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.flight as flight

from veilmeans.crypto.certificates import Identity
from veilmeans.io.exchange.exchange import Outgoing
from veilmeans.io.exchange.flight_streams import PART_SCHEMA
from veilmeans.io.exchange.flight_streams import split as in_parts
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.message import Header, MessageKey

PATIENCE = 300.0
"""Seconds after which a test gives up waiting: an upper bound, not a measure."""
Part = tuple[pa.RecordBatch, bytes | None]


def raw_client(owner: JobConfig, identity: Identity | None) -> flight.FlightClient:
    """Open a client at the gateway of `owner` that may send anything."""
    credentials = {} if identity is None else {"cert_chain": identity.certificate, "private_key": identity.key}
    return flight.FlightClient(
        f"grpc+tls://{owner.listen}",
        tls_root_certs=owner.certificate.read_bytes(),
        override_hostname=owner.party,
        **credentials,
    )


def label(key: MessageKey, header: Header, /, **other: object) -> bytes:
    """Make the label that begins a message on the wire; `other` fields replace the right ones."""
    return json.dumps({"key": key.to_json(), "size": header.size, "sha256": header.digest.hex(), **other}).encode()


def parts_of(sent: Outgoing, header: Header | None = None) -> list[Part]:
    """Split a message into parts as on the wire, under any header."""
    first, *others = in_parts(sent.payload)
    return [(first, label(sent.key, header or Header.of(sent.payload))), *((part, b"{}") for part in others)]


def send_raw(client: flight.FlightClient, parts: Sequence[Part], schema: pa.Schema = PART_SCHEMA) -> int:
    """Put exactly these parts; return how many messages the gateway says it stored."""
    options = flight.FlightCallOptions(timeout=PATIENCE)
    writer, answers = client.do_put(flight.FlightDescriptor.for_command(b"put"), schema, options)
    with writer:
        for batch, metadata in parts:
            if metadata is None:
                writer.write_batch(batch)
            else:
                writer.write_with_metadata(batch, pa.py_buffer(metadata))
        writer.done_writing()
        stored = 0
        while (answer := answers.read()) is not None:
            stored = int(answer.to_pybytes())
        return stored
