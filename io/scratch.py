"""Where a shard's state waits at the barrier: in the element itself, or in the party's scratch store.

The scratch store keeps states as Arrow IPC files on any Beam filesystem, memory-mapped where it is local; only the
path crosses the barrier. A state is written under its address, so a retry writes the same bytes to the same place.
"""

from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
from apache_beam.io.filesystems import FileSystems

from veilmeans.io.spool import disk_error
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Arrays, from_stream, to_batch, to_stream, write_stream
from veilmeans.schemas.shard import Shard


@dataclass(frozen=True)
class Scratch:
    """`root` is a folder on a Beam filesystem, or None: states travel by value."""

    root: str | None

    def keep(self, address: Address, arrays: Arrays) -> Shard:
        """A shard whose arrays are in the store (or in the element, if there is no store)."""
        if self.root is None:
            return Shard(arrays=dict(arrays))
        path = f"{self.root}/{address.run}/{address.iteration}/{address.stage}/{address.shard}.arrow"
        if self._local:
            _write_local(Path(path), arrays)
        else:
            _write_remote(path, arrays)
        return Shard(reference=path)

    def load(self, shard: Shard) -> Arrays:
        """The arrays of a shard, wherever they are."""
        if shard.reference is None:
            return shard.arrays
        if self._local:
            with pa.memory_map(shard.reference) as source:
                return from_stream(source)
        with FileSystems.open(shard.reference, compression_type="uncompressed") as file:
            return from_stream(pa.py_buffer(file.read()))

    def drop(self, address: Address) -> None:
        """Forget a local state that no retry can ask for any more."""
        if self.root is not None and self._local:
            path = f"{self.root}/{address.run}/{address.iteration}/{address.stage}/{address.shard}.arrow"
            Path(path).unlink(missing_ok=True)

    @property
    def _local(self) -> bool:
        return self.root is not None and "://" not in self.root


def _write_local(path: Path, arrays: Arrays) -> None:
    part = path.with_name(f"{path.name}.{uuid4().hex}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with pa.OSFile(str(part), "wb") as file:
            write_stream(to_batch(arrays), file)
        part.replace(path)
    except OSError as error:
        raise disk_error(path.parent, error) from None


def _write_remote(path: str, arrays: Arrays) -> None:
    with FileSystems.create(path, compression_type="uncompressed") as file:
        file.write(to_stream(arrays).to_pybytes())
