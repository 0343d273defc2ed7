"""A shard's state as a Beam element: named arrays, or a reference to them in the party's scratch folder.

The coder writes Arrow IPC, never a pickle. A reference is a path on a Beam filesystem; `io.storage.scratch` makes and
reads it.
"""

from dataclasses import dataclass, field

import apache_beam as beam
import pyarrow as pa

from veilmeans.schemas.arrays import Array, from_stream, nbytes, to_stream

_VALUE, _REFERENCE = b"V", b"R"
_PADDING = b"\0" * 7  # aligns the IPC stream to 8 bytes after the byte of the kind


@dataclass(frozen=True)
class Shard:
    """A state: either `arrays`, or a `reference` to them."""

    arrays: dict[str, Array] = field(default_factory=dict)
    reference: str | None = None


class ShardCoder(beam.coders.Coder):
    """Encode a state as one byte for its kind, followed by the IPC stream or the path."""

    def encode(self, value: Shard) -> bytes:
        if value.reference is not None:
            return _REFERENCE + value.reference.encode()
        return b"".join((_VALUE, _PADDING, to_stream(value.arrays)))

    def decode(self, encoded: bytes) -> Shard:
        if encoded[:1] == _REFERENCE:
            return Shard(reference=encoded[1:].decode())
        return Shard(arrays=from_stream(pa.py_buffer(encoded).slice(8)))

    def estimate_size(self, value: Shard) -> int:
        """Estimate the size for Beam's byte counters; without this, Beam would encode the shard to measure it."""
        return nbytes(value.arrays) if value.reference is None else len(value.reference)

    def is_deterministic(self) -> bool:
        return True


beam.coders.registry.register_coder(Shard, ShardCoder)
