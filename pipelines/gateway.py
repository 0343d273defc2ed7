"""The job `veilmeans gateway`: a party's gateway as a separate process."""

import logging
import signal
import threading

from veilmeans.crypto.certificates import fingerprint
from veilmeans.io.exchange.connections import check_port, load_identity, load_peer_certificates, open_gateway
from veilmeans.io.files.atomic_files import check_writable
from veilmeans.schemas.config import JobConfig

log = logging.getLogger(__name__)


def run_gateway(config: JobConfig) -> None:
    """Serve this party's inbox until the process is interrupted (SIGINT or SIGTERM)."""
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    with open_gateway(config) as gateway:
        log.info("gateway of %s listens on port %d", config.party, gateway.port)
        stopped.wait()


def dry_gateway(config: JobConfig) -> str:
    """Check certificates, port and storage, and return what would be done. The port is bound for a moment."""
    load_identity(config)
    certificates = load_peer_certificates(config)
    check_port(config.listen or "")
    check_writable(config.storage_folder.inbox)
    lines = [
        f"would listen on {config.listen} as {config.party} until it is interrupted, mutual TLS only",
        f"would store messages of up to {config.exchange.max_message_mb:,} MB in {config.storage_folder.inbox}:",
        *(f"  from {name}, with the certificate {fingerprint(pem)}" for name, pem in certificates.items()),
    ]
    return "\n".join(lines)
