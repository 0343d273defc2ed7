"""The coder of a shard's state as a Beam element: Arrow IPC, never a pickle."""

import apache_beam as beam
import pyarrow as pa

from veilmeans.schemas.arrays import from_stream, nbytes, to_stream
from veilmeans.schemas.shard import Shard

_VALUE, _REFERENCE = b"V", b"R"
_PADDING = b"\0" * 7  # aligns the IPC stream to 8 bytes after the byte of the kind


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
