"""What the parties must agree on before any data flow, and how a difference is told."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from veilmeans.schemas.errors import HandshakeError

PROTOCOL_VERSION = 1


@dataclass(frozen=True)
class Terms:
    """`agreed` fields are compared with each peer's; `announced` ones are told to it.

    `binding` is a keyed digest of this party's data and job: it tells nothing, but changes when they do.
    """

    agreed: Mapping[str, Any]
    announced: Mapping[str, Any] = field(default_factory=dict)
    binding: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {"agreed": dict(self.agreed), "announced": dict(self.announced), "binding": self.binding}

    @classmethod
    def from_dict(cls, peer: str, raw: Any) -> "Terms":
        try:
            return cls(dict(raw["agreed"]), dict(raw["announced"]), str(raw["binding"]))
        except (KeyError, TypeError, ValueError):
            raise HandshakeError(f"the handshake of {peer} cannot be read: does it run another veilmeans?") from None


def first_difference(mine: Terms, theirs: Terms, peer: str) -> str | None:
    """The first field that differs, with both values, or None. A field that only one of us has differs, too."""
    for name in sorted({*mine.agreed, *theirs.agreed}, key=lambda name: (name != "protocol version", name)):
        here, there = mine.agreed.get(name), theirs.agreed.get(name)
        if here != there:
            return f"{name} is {_shown(here)} here and {_shown(there)} at {peer}"
    return None


def _shown(value: Any) -> str:
    if value is None:
        return "not set"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
