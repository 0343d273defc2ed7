"""The address of a value: (run, iteration, stage, shard). It names randomness, correlations and messages."""

import re
from dataclasses import dataclass

from veilmeans.schemas.errors import ConfigError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
NAME_RULE = "1 to 80 letters, digits, dots, dashes or underscores, beginning with a letter or digit"
STORE_RUN = "store-"  # begins the name of the run in which a triple store is made
ALIGN_RUN = "align-"  # begins the name of the run in which rows are aligned


def checked_name(what: str, name: str) -> str:
    """Return `name` if it is fit for a path and a certificate; else raise a ConfigError."""
    if not NAME.fullmatch(name):
        raise ConfigError(f"{what} is {name!r}: it must be {NAME_RULE}")
    return name


@dataclass(frozen=True)
class Address:
    """The address of one shard in one stage of one iteration of one run."""

    run: str
    iteration: int
    stage: str
    shard: int

    def encode(self) -> bytes:
        """Encode injectively: each field is preceded by its length."""
        fields = (self.run.encode(), str(self.iteration).encode(), self.stage.encode(), str(self.shard).encode())
        return b"".join(len(field).to_bytes(4, "big") + field for field in fields)

    def __str__(self) -> str:
        return f"{self.run}/{self.iteration}/{self.stage}/{self.shard}"
