"""Why a TLS connection failed, in words: gRPC says only that the peer cannot be reached.

The question is put to the peer once more with Python's own `ssl`: what certificate does it show, and what alert does
it answer ours with? The peer's side says why in its gateway's log (`explained_handshakes`).
"""

import os
import re
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from veilmeans.crypto.certificates import Identity, fingerprint

_HUNG_UP = "HUNG_UP"
"""What gRPC's servers do instead of an alert: they close the connection when they have seen our certificate."""
_ALERTS = {
    _HUNG_UP: "it has pinned another certificate for us",
    "UNKNOWN_CA": "it has pinned another certificate for us",
    "BAD_CERTIFICATE": "it has pinned another certificate for us",
    "CERTIFICATE_UNKNOWN": "it has pinned another certificate for us",
    "CERTIFICATE_EXPIRED": "our certificate has expired",
    "CERTIFICATE_REQUIRED": "we showed it none",
}
_HANDSHAKE_FAILED = re.compile(
    r"ssl_transport_security.*Handshake failed with error.*?::(?:certificate verify failed: (.*)|(.*))$"
)
_PAUSE = 0.2
"""Seconds between two questions to a server that hung up."""
_GRPC_LINE = re.compile(rb"[IWEF]\d{4} ")
_REASONS = {
    "peer did not return a certificate": "it showed no certificate",
    "certificate has expired": "its certificate has expired",
    "certificate is not yet valid": "its certificate is not valid yet",
}


def diagnose(name: str, address: str, pinned: bytes, identity: Identity, error: str) -> str | None:
    """A sentence if certificates are why `name` cannot be reached, else None (it may just be starting)."""
    if "connect" not in error.lower() and "closed" not in error.lower() and "ssl" not in error.lower():
        return None
    try:
        shown, alert = _probe(address, identity)
        if alert == _HUNG_UP:  # or it was just being stopped: then it does not take the next connection
            time.sleep(_PAUSE)
            shown, alert = _probe(address, identity)
    except OSError:
        return None
    if shown is not None and shown != x509.load_pem_x509_certificate(pinned):
        theirs = fingerprint(shown.public_bytes(Encoding.PEM))
        return (
            f"the gateway of {name} at {address} showed a certificate with fingerprint {theirs}, but the one pinned "
            f"here has {fingerprint(pinned)}: ask {name} for its certificate"
        )
    outdated = _outdated(pinned)
    if outdated is not None:
        return f"the gateway of {name} at {address} showed a certificate that {outdated}: ask {name} for a new one"
    for word, reason in _ALERTS.items():
        if word in alert:
            return _refused(name, address, identity, reason)
    return None


def _refused(name: str, address: str, identity: Identity, reason: str) -> str:
    outdated = _outdated(identity.certificate)
    if outdated is not None:
        return (
            f"the gateway of {name} at {address} refused our certificate, which {outdated}: "
            f"make a new one with `veilmeans keys` and send it to {name}"
        )
    return (
        f"the gateway of {name} at {address} refused our certificate ({reason}): "
        f"send {name} ours, fingerprint {fingerprint(identity.certificate)}"
    )


def _outdated(pem: bytes) -> str | None:
    """What is wrong with a certificate's dates, if anything."""
    certificate, now = x509.load_pem_x509_certificate(pem), datetime.now(UTC)
    if now > certificate.not_valid_after_utc:
        return f"expired on {certificate.not_valid_after_utc.date()}"
    if now < certificate.not_valid_before_utc:
        return f"is valid from {certificate.not_valid_before_utc.date()} on"
    return None


def _probe(address: str, identity: Identity) -> tuple[x509.Certificate | None, str]:
    """The certificate that a server shows, and how it refuses ours ('' if it does not)."""
    host, _, port = address.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with tempfile.TemporaryDirectory() as folder:
        pair = Path(folder) / "pair.pem"
        pair.touch(mode=0o600)
        pair.write_bytes(identity.key + identity.certificate)
        context.load_cert_chain(pair)
    with socket.create_connection((host, int(port)), timeout=2) as raw:
        try:
            with context.wrap_socket(raw, server_hostname=host) as secure:
                der = secure.getpeercert(binary_form=True)
                shown = x509.load_der_x509_certificate(der) if der else None
                try:
                    return shown, "" if secure.recv(1) else _HUNG_UP
                except TimeoutError:
                    return shown, ""
                except ConnectionResetError:
                    return shown, _HUNG_UP
                except ssl.SSLError as alert:
                    return shown, str(alert)
        except ssl.SSLError as alert:
            return None, str(alert)


@contextmanager
def explained_handshakes() -> Iterator[None]:
    """While this is open, say in words why a TLS handshake with this process's gateway failed.

    gRPC writes the reason to file descriptor 2 and nowhere else; so descriptor 2 is read, and its lines passed on.
    """
    reader, writer = os.pipe()
    real = os.dup(2)
    os.dup2(writer, 2)
    os.close(writer)
    relay = threading.Thread(target=_relay, args=(reader, real), name="stderr-relay", daemon=True)
    relay.start()
    try:
        yield
    finally:
        os.dup2(real, 2)
        relay.join(timeout=2)


def _relay(reader: int, real: int) -> None:
    """Pass lines from `reader` on to `real` until all writers are gone; unfinished lines go at once unless gRPC's.

    Both descriptors are closed at the end.
    """
    pending = b""
    while data := os.read(reader, 65536):
        *whole, pending = (pending + data).split(b"\n")
        text = b"".join(explained(line.decode(errors="replace")).encode() + b"\n" for line in whole)
        if pending and not _GRPC_LINE.match(pending):
            text, pending = text + pending, b""
        os.write(real, text)
    os.write(real, pending)
    os.close(reader)
    os.close(real)


def explained(line: str) -> str:
    """A line of gRPC's log in words, if it tells of a failed handshake; any other line as it is."""
    found = _HANDSHAKE_FAILED.search(line)
    if found is None:
        return line
    why = (found[1] or found[2]).strip()
    for beginning, reason in _REASONS.items():
        if why.startswith(beginning):
            return f"refused a connection: {reason}"
    if found[1]:
        return f"refused a connection: its certificate is none of the pinned ones ({why})"
    what = "the other side refused our certificate" if " alert " in why else "it does not speak TLS as we do"
    return f"a connection failed: {what} ({why})"
