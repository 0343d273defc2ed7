"""A shard's state as a Beam element: named arrays, by value or as a reference into the party's scratch store.

Its coder writes Arrow IPC, never a pickle. A reference is a path on a Beam filesystem; `io.storage.scratch`
makes and reads it.
"""

from dataclasses import dataclass, field

import apache_beam as beam
import pyarrow as pa

from veilmeans.schemas.arrays import Array, from_stream, nbytes, to_stream

_VALUE, _REFERENCE = b"V", b"R"
_PADDING = b"\0" * 7
"""Keeps the IPC stream at a multiple of 8 behind the one byte of kind."""


@dataclass(frozen=True)
class Shard:
    """Either `arrays`, or a `reference` to where they are kept."""

    arrays: dict[str, Array] = field(default_factory=dict)
    reference: str | None = None


class ShardCoder(beam.coders.Coder):
    """One byte that says which of the two it is, then the IPC stream or the path."""

    def encode(self, value: Shard) -> bytes:
        if value.reference is not None:
            return _REFERENCE + value.reference.encode()
        return b"".join((_VALUE, _PADDING, to_stream(value.arrays)))

    def decode(self, encoded: bytes) -> Shard:
        if encoded[:1] == _REFERENCE:
            return Shard(reference=encoded[1:].decode())
        return Shard(arrays=from_stream(pa.py_buffer(encoded).slice(8)))

    def estimate_size(self, value: Shard) -> int:
        """For Beam's byte counters; by itself Beam would encode the whole shard to see how long it is."""
        return nbytes(value.arrays) if value.reference is None else len(value.reference)

    def is_deterministic(self) -> bool:
        return True


beam.coders.registry.register_coder(Shard, ShardCoder)
