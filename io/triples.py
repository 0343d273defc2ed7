"""A party's store of correlated randomness: a seed (0600), and corrections in memory-mapped Arrow IPC files.

All parties but the last expand their shares from the seed alone. The last party holds corrections, one file for each
stage and shard, because its shares of products are determined by everyone else's.
"""

from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from veilmeans.crypto.ring import Ring
from veilmeans.io.keys import read_secret, write_secret
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Arrays, from_stream, to_batch, write_stream
from veilmeans.schemas.errors import StorageError


@dataclass(frozen=True)
class TripleStore:
    """The store below one folder, for one run."""

    folder: Path
    seed: bytes = field(repr=False)
    corrected: bool

    @classmethod
    def create(cls, folder: Path, seed: bytes, corrected: bool) -> "TripleStore":
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_secret(folder / ("seed.corrected" if corrected else "seed"), seed)
        return cls(folder, seed, corrected)

    @classmethod
    def open(cls, folder: Path) -> "TripleStore":
        for name, corrected in (("seed", False), ("seed.corrected", True)):
            if (folder / name).exists():
                return cls(folder, read_secret(folder / name), corrected)
        raise StorageError(f"there is no triple store in {folder}: has the dealer run?")

    def write_correction(self, address: Address, arrays: Arrays) -> None:
        path = self._path(address)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        with pa.OSFile(str(part), "wb") as file:
            write_stream(to_batch(arrays), file)
        part.replace(path)

    def correction(self, address: Address, name: str) -> Ring:
        path = self._path(address)
        if not path.exists():
            raise StorageError(f"the triple store has no correction for {address}: the dealer planned another job")
        with pa.memory_map(str(path)) as source:
            return from_stream(source)[name]

    def _path(self, address: Address) -> Path:
        return self.folder / str(address.iteration) / address.stage / f"{address.shard}.arrow"
