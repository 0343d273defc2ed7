"""The token with which workers of a run identify themselves to their own party's gateway.

A worker has no key, no certificate and no seed of the party. Its token names the runs that it may work for, carries the
certificate that the gateway must show, and ends with HMAC-SHA256 under a key of the party's seed, which the gateway can
check. With it a worker can send and read messages of these runs, and get the keys of their files; it is a secret. The
party may revoke all tokens of a run: a token has the number of revocations before it was made.
"""

import base64
import hmac
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

from veilmeans.crypto import prg
from veilmeans.io.files.atomic_files import make_private_folder, write_text
from veilmeans.schemas.address import STORE_RUN
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import ConfigError, StorageError
from veilmeans.schemas.run_folder import RunFolder

TOKEN, TOKEN_FILE = "VEILMEANS_TOKEN", "VEILMEANS_TOKEN_FILE"
TOKEN_HEADER = "x-veilmeans-token"
MOUNTED = Path("/run/secrets/veilmeans_token")


@dataclass(frozen=True)
class RunToken:
    """A token for `run`, the trainings of its sweep, and the making of its triple store."""

    party: str
    run: str
    store: str
    certificate: str
    proof: str = field(repr=False)
    revocations: str = "0"

    def admits(self, run: str) -> bool:
        """Return whether the token is for a run."""
        return run == self.run or run.startswith(f"{self.run}.") or (run == f"{STORE_RUN}{self.store}" != STORE_RUN)

    def encode(self) -> str:
        """The token as one line of text."""
        return base64.urlsafe_b64encode(json.dumps(asdict(self)).encode()).decode()

    @classmethod
    def parse(cls, text: str, where: str) -> "RunToken":
        """Read a token's text, which comes from `where`."""
        try:
            fields = json.loads(base64.urlsafe_b64decode(text.strip()))
            return cls(**{name: str(value) for name, value in fields.items()})
        except (ValueError, TypeError, AttributeError):
            raise ConfigError(
                f"{where} holds no token of a run: put the output of `veilmeans config token` there"
            ) from None

    def proven_by(self, seed: bytes) -> bool:
        """Return whether the token was made with this seed."""
        return hmac.compare_digest(self.proof, _proof(seed, self.party, self.run, self.store, self.revocations))

    def is_revoked(self, folder: RunFolder) -> bool:
        """Return whether the tokens of its run, whose folder this is, were revoked since it was made."""
        return self.revocations != count_revocations(folder)


def make_token(seed: bytes, config: JobConfig, certificate: bytes) -> RunToken:
    """Make the token of a configured run."""
    store = config.triples.store if config.triples is not None else ""
    revocations = count_revocations(config.run_folder)
    proof = _proof(seed, config.party, config.run, store, revocations)
    return RunToken(config.party, config.run, store, certificate.decode(), proof, revocations)


def count_revocations(folder: RunFolder) -> str:
    """Return how often the tokens of a run were revoked."""
    try:
        return folder.revocations.read_text()
    except FileNotFoundError:
        return "0"
    except OSError as error:
        raise StorageError(f"{folder.revocations} cannot be read: {error.strerror}") from None


def revoke_tokens(folder: RunFolder) -> None:
    """Let the gateway refuse all tokens of a run that were made so far."""
    make_private_folder(folder.path)
    write_text(folder.revocations, str(int(count_revocations(folder)) + 1))


def find_token(config: JobConfig) -> RunToken:
    """Find this worker's token: in its environment, in a file that it names, or among mounted secrets."""
    if os.environ.get(TOKEN):
        return RunToken.parse(os.environ[TOKEN], f"the environment variable {TOKEN}")
    named = os.environ.get(TOKEN_FILE)
    file = Path(named) if named else (config.workers.token if config.workers is not None else None) or MOUNTED
    try:
        return RunToken.parse(file.read_text(), str(file))
    except OSError as error:
        raise ConfigError(
            f"this worker of {config.party} has no token of run {config.run!r} ({file}: {error.strerror}): give it one "
            f"in {TOKEN}, as a file that {TOKEN_FILE} names, or mounted as {MOUNTED}; `veilmeans config token` makes it"
        ) from None


def _proof(seed: bytes, *fields: str) -> str:
    return hmac.digest(prg.derive(seed, "tokens of workers"), json.dumps(fields).encode(), "sha256").hex()
