"""The place of a shard's state at a barrier: the element itself, this process, or the party's scratch folder.

  value    the arrays are in the element: Beam's coder copies them through every barrier
  memory/… this process keeps the arrays, and a reference crosses; for runners whose workers are threads of one process
  a path   Arrow IPC files below a folder, memory-mapped where it is local; sealed where it is on another Beam
           filesystem (`io.files.shared_files`); the path crosses

A state is kept under its address, so a retry keeps the same state in the same place.
"""

from dataclasses import dataclass
from pathlib import Path

from veilmeans.io.files.party_files import files_at, read_file_arrays, write_file_arrays
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Arrays
from veilmeans.schemas.shard import Shard

VALUE, MEMORY = "value", "memory/"
_memory: dict[str, Arrays] = {}


@dataclass(frozen=True)
class Scratch:
    """The states of one party. `root`: VALUE, or MEMORY and a name for the party, or a folder."""

    root: str

    def keep(self, address: Address, arrays: Arrays) -> Shard:
        """Keep a state; return the shard that crosses the barrier for it."""
        if self.root == VALUE:
            return Shard(arrays=dict(arrays))
        path = self._path(address)
        if self._in_memory:
            _memory[path] = arrays
        else:
            write_file_arrays(Path(path), arrays)
        return Shard(reference=path)

    def load(self, shard: Shard) -> Arrays:
        """Load the state of a shard."""
        if shard.reference is None:
            return shard.arrays
        if self._in_memory:
            return _memory[shard.reference]
        return read_file_arrays(Path(shard.reference), fresh=True)

    def drop(self, address: Address) -> None:
        """Delete a state that no retry needs any more."""
        if self._in_memory:
            _memory.pop(self._path(address), None)
        elif self.root != VALUE:
            path = Path(self._path(address))
            files_at(path).delete(path)

    def clear(self, run: str, iteration: int | None = None) -> None:
        """Delete all states of a run whose pipeline has ended, or of one iteration that has."""
        folder = f"{self.root}/{run}/" if iteration is None else f"{self.root}/{run}/{iteration}/"
        for path in [path for path in _memory if path.startswith(folder)]:
            del _memory[path]
        if self.root != VALUE and not self._in_memory:
            files_at(Path(folder)).delete_folder(Path(folder))

    def _path(self, address: Address) -> str:
        return f"{self.root}/{address}.arrow"

    @property
    def _in_memory(self) -> bool:
        return self.root.startswith(MEMORY)
