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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from veilmeans.crypto.certificates import Identity, fingerprint

_ALERTS = {
    "UNKNOWN_CA": "it has pinned another certificate for us",
    "BAD_CERTIFICATE": "it has pinned another certificate for us",
    "CERTIFICATE_UNKNOWN": "it has pinned another certificate for us",
    "CERTIFICATE_EXPIRED": "our certificate has expired",
    "CERTIFICATE_REQUIRED": "we showed it none",
}
_HANDSHAKE_FAILED = re.compile(r"ssl_transport_security.*Handshake failed with error.*?(?:verify failed: (.*)|::(.*))$")
_GRPC_LINE = re.compile(rb"[IWEF]\d{4} ")
_REASONS = {
    "peer did not return a certificate": "it showed no certificate",
    "certificate has expired": "its certificate has expired",
}


def diagnose(name: str, address: str, pinned: bytes, identity: Identity, error: str) -> str | None:
    """A sentence if certificates are why `name` cannot be reached, else None (it may just be starting)."""
    if "connect" not in error.lower() and "closed" not in error.lower() and "ssl" not in error.lower():
        return None
    try:
        shown, alert = _probe(address, identity)
    except OSError:
        return None
    if shown is not None and shown != x509.load_pem_x509_certificate(pinned):
        theirs = fingerprint(shown.public_bytes(Encoding.PEM))
        return (
            f"the gateway of {name} at {address} showed a certificate with fingerprint {theirs}, but the one pinned "
            f"here has {fingerprint(pinned)}: ask {name} for its certificate"
        )
    for word, reason in _ALERTS.items():
        if word in alert:
            return (
                f"the gateway of {name} at {address} refused our certificate ({reason}): "
                f"send {name} ours, fingerprint {fingerprint(identity.certificate)}"
            )
    return None


def _probe(address: str, identity: Identity) -> tuple[x509.Certificate | None, str]:
    """The certificate that a server shows, and the alert it answers ours with ('' if none)."""
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
                    secure.recv(1)
                except ssl.SSLError as alert:
                    return shown, str(alert)
                except TimeoutError:
                    pass
                return shown, ""
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
    """Pass lines from `reader` on to `real` until all writers are gone; unfinished lines go at once unless gRPC's."""
    pending = b""
    while data := os.read(reader, 65536):
        *whole, pending = (pending + data).split(b"\n")
        text = b"".join(explained(line.decode(errors="replace")).encode() + b"\n" for line in whole)
        if pending and not _GRPC_LINE.match(pending):
            text, pending = text + pending, b""
        os.write(real, text)
    os.write(real, pending)


def explained(line: str) -> str:
    """A line of gRPC's log in words, if it tells of a failed handshake; any other line as it is."""
    found = _HANDSHAKE_FAILED.search(line)
    if found is None:
        return line
    why = (found[1] or found[2]).strip()
    return f"refused a connection: {_REASONS.get(why, f'its certificate is none of the pinned ones ({why})')}"
