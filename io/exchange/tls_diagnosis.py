"""The cause of a failed TLS connection in one sentence: gRPC reports only that the peer cannot be reached.

The handshake is repeated once with Python's own `ssl`, which shows the peer's certificate and its alert about ours.
"""

import os
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from veilmeans.crypto.certificates import Identity, fingerprint

_CLOSED = "CLOSED"  # gRPC's servers that refuse a certificate close the connection without an alert
_OTHER_CERTIFICATE = "it has pinned another certificate for us"
_CAUSES = {  # the cause of a refusal, by a word of the peer's alert
    _CLOSED: _OTHER_CERTIFICATE,
    "UNKNOWN_CA": _OTHER_CERTIFICATE,
    "BAD_CERTIFICATE": _OTHER_CERTIFICATE,
    "CERTIFICATE_UNKNOWN": _OTHER_CERTIFICATE,
    "CERTIFICATE_EXPIRED": "our certificate has expired",
    "CERTIFICATE_REQUIRED": "we showed it none",
}
_PAUSE = 0.2  # seconds before a server that closed the connection is asked again


class Cause(NamedTuple):
    """Why certificates keep us from a peer. `not_pinned`: the peer does not admit our certificate at present."""

    sentence: str
    not_pinned: bool = False


def diagnose(name: str, address: str, pinned: bytes, identity: Identity | None, error: str) -> Cause | None:
    """Return the cause if certificates are why `name` cannot be reached, else None (it may be starting).

    `identity`: what we show; a worker shows no certificate.
    """
    if "connect" not in error.lower() and "closed" not in error.lower() and "ssl" not in error.lower():
        return None
    try:
        shown, alert = _probe(address, identity)
        if alert == _CLOSED:  # or the server was being stopped: then it does not accept the next connection
            time.sleep(_PAUSE)
            shown, alert = _probe(address, identity)
    except OSError:
        return None
    if shown is not None and shown != x509.load_pem_x509_certificate(pinned):
        theirs = fingerprint(shown.public_bytes(Encoding.PEM))
        return Cause(
            f"the gateway of {name} at {address} showed a certificate with fingerprint {theirs}, but the one pinned "
            f"here has {fingerprint(pinned)}: ask {name} for its certificate"
        )
    invalid = _invalid_dates(pinned)
    if invalid is not None:
        return Cause(
            f"the gateway of {name} at {address} showed a certificate that {invalid}: ask {name} for a new one"
        )
    for word, cause in _CAUSES.items():
        if word in alert and identity is not None:
            return _certificate_refused(name, address, identity, cause)
    return None


def _certificate_refused(name: str, address: str, identity: Identity, cause: str) -> Cause:
    invalid = _invalid_dates(identity.certificate)
    if invalid is not None:
        return Cause(
            f"the gateway of {name} at {address} refused our certificate, which {invalid}: "
            f"make a new one with `veilmeans config keys` and send it to {name}"
        )
    ours = f"send {name} ours, fingerprint {fingerprint(identity.certificate)}"
    sentence = f"the gateway of {name} at {address} refused our certificate ({cause}): {ours}"
    return Cause(sentence, not_pinned=cause is _OTHER_CERTIFICATE)


def _invalid_dates(pem: bytes) -> str | None:
    """Return how a certificate's dates are wrong, or None if it is valid now."""
    certificate, now = x509.load_pem_x509_certificate(pem), datetime.now(UTC)
    if now > certificate.not_valid_after_utc:
        return f"expired on {certificate.not_valid_after_utc.date()}"
    if now < certificate.not_valid_before_utc:
        return f"is valid from {certificate.not_valid_before_utc.date()} on"
    return None


@contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """Yield a path from which a content can be read once: `ssl` wants files, and no copy of a key goes to a disk."""
    reader, writer = os.pipe()
    try:
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(content)
        yield f"/dev/fd/{reader}"
    finally:
        os.close(reader)


def _probe(address: str, identity: Identity | None) -> tuple[x509.Certificate | None, str]:
    """Connect once; return the certificate that the server shows, and how it refuses ours ('' if it does not)."""
    host, _, port = address.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    if identity is not None:
        with _as_file(identity.certificate) as certificate, _as_file(identity.key) as key:
            context.load_cert_chain(certificate, key)
    with socket.create_connection((host, int(port)), timeout=2) as raw:
        try:
            with context.wrap_socket(raw, server_hostname=host) as secure:
                der = secure.getpeercert(binary_form=True)
                shown = x509.load_der_x509_certificate(der) if der else None
                try:
                    return shown, "" if secure.recv(1) else _CLOSED
                except TimeoutError:
                    return shown, ""
                except ConnectionResetError:
                    return shown, _CLOSED
                except ssl.SSLError as alert:
                    return shown, str(alert)
        except ssl.SSLError as alert:
            return None, str(alert)
