"""The job `veilmeans gateway`: a party's gateway as a process of its own."""

from veilmeans.crypto.certificates import fingerprint
from veilmeans.io.exchange.connections import check_port, load_identity, load_peer_certificates
from veilmeans.io.storage.atomic_files import check_writable
from veilmeans.schemas.config import JobConfig


def dry_gateway(config: JobConfig) -> str:
    """The port is bound for a moment, to see that it is free."""
    load_identity(config)
    certificates = load_peer_certificates(config)
    check_port(config.listen or "")
    check_writable(config.storage / "inbox")
    peers = [f"  from {name}, whose certificate is {fingerprint(pem)}" for name, pem in certificates.items()]
    return "\n".join(
        [
            f"would listen on {config.listen} as {config.party} until it is interrupted, mutual TLS only",
            f"would store messages of up to {config.exchange.max_message_mb:,} MB in {config.storage / 'inbox'}:",
            *peers,
        ]
    )
