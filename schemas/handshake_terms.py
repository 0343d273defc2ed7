"""The terms that parties compare in a handshake, before any data flow."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from veilmeans.schemas.errors import HandshakeError

PROTOCOL_VERSION = 3
_COMPARED_FIRST = ("protocol version", "parties", "triples.store", "triples.rows")
"""Other terms depend on these, so a difference in these is the one to name."""
POLICY = "signature of the reveal policy"  # announced: it is checked with the sender's certificate
IDS = "ids"  # announced: a digest of the rows' ids under a key that only the two parties have
_DEEPEST = 10  # levels of lists and objects in the terms of a peer
_LONGEST_QUOTE = 200  # characters of a value in a sentence


@dataclass(frozen=True)
class Terms:
    """The terms that one party sends to a peer.

    agreed      field -> value, equal at both
    announced   field -> value, for the peer's information
    binding     a keyed digest of this party's data and job: it reveals nothing, but changes when they do
    """

    agreed: Mapping[str, Any]
    announced: Mapping[str, Any] = field(default_factory=dict)
    binding: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {"agreed": dict(self.agreed), "announced": dict(self.announced), "binding": self.binding}

    def bound(self) -> dict[str, Any]:
        """All to which a run is bound. Digests of ids and signatures change with the parties' keys."""
        announced = {name: value for name, value in self.announced.items() if name not in (IDS, POLICY)}
        return {**self.to_dict(), "announced": announced}

    @classmethod
    def from_dict(cls, peer: str, raw: Any) -> "Terms":
        try:
            _check_depth(raw, _DEEPEST)
            return cls(dict(raw["agreed"]), dict(raw["announced"]), str(raw["binding"]))
        except (KeyError, TypeError, ValueError):
            raise HandshakeError(f"the handshake of {peer} cannot be read: does it run another veilmeans?") from None


def _check_depth(value: Any, levels: int) -> None:
    """Refuse values that are nested too deeply to be compared, quoted or sent back."""
    if levels < 0:
        raise ValueError("nested too deeply")
    below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for each in below:
        _check_depth(each, levels - 1)


def first_difference(mine: Terms, theirs: Terms, peer: str) -> str | None:
    """Name the first field that differs, with both values; None if none does. A field that one party lacks differs."""
    for name in dict.fromkeys((*_COMPARED_FIRST, *sorted({*mine.agreed, *theirs.agreed}))):
        here, there = mine.agreed.get(name), theirs.agreed.get(name)
        if here != there:
            return f"{_short(name)} is {_short(_shown(here))} here and {_short(_shown(there))} at {peer}"
    return None


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]} …"


def _shown(value: Any) -> str:
    if value is None:
        return "not set"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return str(value)
