"""An object store on a host of its own, and what its users need to reach it as they would reach Google's."""

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from support.cluster.hosts import Host, Network, await_page

BUCKET = "veilmeans"
HERE = Path(__file__).parent


@dataclass(frozen=True)
class ObjectStore:
    """A running store; `variables` and the account's file let a process on any host use it as gs://veilmeans/…"""

    host: Host
    url: str
    account: str = field(repr=False)

    @property
    def objects(self) -> dict[str, bytes]:
        """Everything that lies in the bucket."""
        bucket = self.host.folder / "objects" / BUCKET
        return {str(path.relative_to(bucket)): path.read_bytes() for path in bucket.rglob("*") if path.is_file()}

    def variables(self, host: Host) -> dict[str, str]:
        """Give a host the service account; return the variables for its processes."""
        file = host.folder / "service-account.json"
        file.write_text(self.account)
        file.chmod(0o600)
        return {
            "STORAGE_EMULATOR_HOST": self.url,
            "GOOGLE_APPLICATION_CREDENTIALS": str(file),
            "NO_GCE_CHECK": "true",
        }


def start_object_store(network: Network) -> ObjectStore:
    """Start the store on a new host."""
    host = network.add("store", sees=[HERE])
    ports = host.port(), host.port()
    arguments = [host.address, *map(str, ports), str(host.folder), BUCKET]
    process = host.start([sys.executable, str(HERE / "gcs_emulator.py"), *arguments], "store.log")
    url, tokens = (f"http://{host.address}:{port}" for port in ports)
    await_page(process, host, "store.log", tokens)
    await_page(process, host, "store.log", f"{url}/storage/v1/b/{BUCKET}", BUCKET)
    return ObjectStore(host, url, _account(tokens))


def _account(tokens: str) -> str:
    """The key file of a made-up service account.

    Its tokens come from our own server; without an address Google's library asks Google nothing about it.
    """
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    encoding, style, open_ = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    fields = {
        "type": "service_account",
        "project_id": "veilmeans-test",
        "client_email": "",
        "token_uri": tokens,
        "private_key": key.private_bytes(encoding, style, open_).decode(),
    }
    return json.dumps(fields)
