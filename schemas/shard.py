"""A shard's state between two stages: named arrays, or a reference to them in the party's scratch folder.

A reference is a path on a Beam filesystem; `io.storage.scratch` makes and reads it.
"""

from dataclasses import dataclass, field

from veilmeans.schemas.arrays import Array


@dataclass(frozen=True)
class Shard:
    """A state: either `arrays`, or a `reference` to them."""

    arrays: dict[str, Array] = field(default_factory=dict)
    reference: str | None = None
