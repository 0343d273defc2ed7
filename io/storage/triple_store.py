"""A party's store of correlated randomness: a seed (0600), corrections in memory-mapped Arrow IPC files, and a ledger.

A store serves a number of runs of one job. Its addresses are its own, (store · run number, iteration, stage, shard), so
what a run may use does not depend on the run's name. A run claims a number once; the ledger refuses the same run with
other data, and a number is never given twice. A party expands its shares from the seed, but for those that everyone
else's determine (`crypto.correlations`): these are corrections, one file for each run number, iteration and shard.
Beside them, where a job works with ciphertexts, are those that were made beforehand (`he_keyring` has the keys).
"""

import json
import os
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path

import pyarrow as pa

from veilmeans.io.storage.atomic_files import disk_error, write_arrays, write_json
from veilmeans.io.storage.secret_files import read_secret, write_secret
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Array, Arrays, from_stream
from veilmeans.schemas.errors import StorageError


@dataclass(frozen=True)
class Manifest:
    """What a store serves; public. `plan` is the digest of every need of the job, so of its shapes.

    `engines`: those chosen for each party's distance and update, in the parties' order.
    """

    store: str
    runs: int
    iterations: int
    rows: int
    plan: str
    engines: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class TripleStore:
    """The store below one folder."""

    folder: Path
    manifest: Manifest
    seed: bytes = field(repr=False)

    @classmethod
    def create(cls, folder: Path, manifest: Manifest, seed: bytes) -> "TripleStore":
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            (folder / "claims").mkdir(exist_ok=True)
        except OSError as error:
            raise disk_error(folder, error) from None
        write_secret(folder / "seed", seed)
        return cls(folder, manifest, seed)

    def complete(self) -> None:
        """All corrections are there: from now on the store can be opened."""
        write_json(self.folder / "manifest.json", asdict(self.manifest))

    @classmethod
    def open(cls, folder: Path) -> "TripleStore":
        file = folder / "manifest.json"
        if not file.exists():
            raise StorageError(f"there is no complete triple store in {folder}: run `veilmeans offline` first")
        try:
            content = json.loads(file.read_text())
            engines = tuple(tuple(map(str, each)) for each in content.pop("engines", ()))
            manifest = Manifest(**content, engines=engines)
        except (ValueError, TypeError, AttributeError):
            raise StorageError(f"{file} cannot be read: make the store again with `veilmeans offline`") from None
        return cls(folder, manifest, read_secret(folder / "seed"))

    def runs_left(self) -> int:
        """How many more runs the store serves."""
        return self.manifest.runs - self.next_number()

    def next_number(self) -> int:
        """The lowest number above all that were claimed."""
        return max((int(file.stem) + 1 for file in self._claims().glob("*.json")), default=0)

    def claimed(self, run: str, binding: str) -> "StoreRun | None":
        """What `run` claimed before, if it did; other data under its name are refused."""
        for file in self._claims().glob("*.json"):
            claim = self._read_claim(file)
            if claim["run"] == run:
                if claim["binding"] != binding:
                    raise StorageError(
                        f"run {run!r} has used masks of the store {self.manifest.store!r} for other data or another "
                        "configuration: choose a new run id"
                    )
                return StoreRun(self, int(file.stem))
        return None

    def claim(self, number: int, run: str, binding: str) -> "StoreRun":
        """Take a number for `run`, once and for all."""
        known = self.claimed(run, binding)
        if known is not None:
            return known
        self.require(runs=1)
        if number < self.next_number() or number >= self.manifest.runs:
            raise self._not_free(number, run)
        part = self._claims() / f"{number}.{run}.part"
        try:
            with part.open("w") as file:
                file.write(json.dumps({"run": run, "binding": binding}))
                file.flush()
                os.fsync(file.fileno())  # a claim must outlive the masks that it stands for
            os.link(part, self._claims() / f"{number}.json")
        except FileExistsError:  # another run of ours was quicker
            raise self._not_free(number, run) from None
        except OSError as error:
            raise disk_error(self.folder, error) from None
        finally:
            part.unlink(missing_ok=True)
        return StoreRun(self, number)

    def _read_claim(self, file: Path) -> dict[str, str]:
        try:
            claim = json.loads(file.read_text())
            return {"run": str(claim["run"]), "binding": str(claim["binding"])}
        except (OSError, ValueError, KeyError, TypeError):
            raise StorageError(
                f"{file} cannot be read, so nobody knows what the store {self.manifest.store!r} has been used for: "
                "make a new store with `veilmeans offline`"
            ) from None

    def _not_free(self, number: int, run: str) -> StorageError:
        return StorageError(f"number {number} of the store {self.manifest.store!r} is not free for run {run!r}")

    def require(self, runs: int = 0, iterations: int = 0, plan: str | None = None) -> None:
        """Say before a run starts what the store lacks for it."""
        name, manifest = self.manifest.store, self.manifest
        if plan is not None and plan != manifest.plan:
            raise StorageError(
                f"the store {name!r} was made for another job or other shapes ({manifest.rows:,} rows): "
                "make one for this job with `veilmeans offline`"
            )
        if iterations > manifest.iterations:
            raise StorageError(
                f"the store {name!r} serves {manifest.iterations:,} iterations a run, and the job may need "
                f"{iterations:,}: {iterations - manifest.iterations:,} more; "
                "make a store for them with `veilmeans offline`"
            )
        if runs > self.runs_left():
            raise StorageError(
                f"the store {name!r} serves {manifest.runs:,} runs and has {self.runs_left():,} left, {runs:,} needed: "
                "make a new store with `veilmeans offline`"
            )

    def write_corrections(self, number: int, iteration: int, shard: int, arrays: Arrays) -> None:
        write_arrays(self._path("corrections", number, iteration, shard), arrays)

    def has_corrections(self, number: int, iteration: int, shard: int) -> bool:
        return self._path("corrections", number, iteration, shard).exists()

    def corrections(self, number: int, iteration: int, shard: int) -> Arrays:
        return _mapped(self._path("corrections", number, iteration, shard))

    def write_ciphers(self, number: int, iteration: int, shard: int, arrays: Arrays) -> None:
        write_arrays(self._path("ciphers", number, iteration, shard), arrays)

    def has_ciphers(self, number: int, iteration: int, shard: int) -> bool:
        return self._path("ciphers", number, iteration, shard).exists()

    def ciphers(self, number: int, iteration: int, shard: int) -> Arrays:
        return _mapped(self._path("ciphers", number, iteration, shard))

    def _path(self, kind: str, number: int, iteration: int, shard: int) -> Path:
        return self.folder / kind / str(number) / str(iteration) / f"{shard}.arrow"

    def _claims(self) -> Path:
        return self.folder / "claims"


@dataclass(frozen=True)
class StoreRun:
    """The part of a store that one run has claimed."""

    store: TripleStore
    number: int

    @property
    def seed(self) -> bytes:
        return self.store.seed

    def at(self, address: Address) -> Address:
        """The store's own address for a place in the run."""
        return store_address(self.store.manifest.store, self.number, address)

    def serves(self, iteration: int, shard: int) -> bool:
        """Whether the store has this shard's file."""
        return self.store.has_corrections(self.number, iteration, shard)

    def correction(self, address: Address, label: str) -> Array:
        """This party's corrected share under `label`."""
        return _named(self.store.corrections(self.number, address.iteration, address.shard), address, label)

    def ciphers(self, address: Address, label: str) -> Array:
        """The ciphertexts that were made beforehand under `label`."""
        return _named(self.store.ciphers(self.number, address.iteration, address.shard), address, label)


def _named(found: Arrays, address: Address, label: str) -> Array:
    name = correction_name(address.stage, label)
    if name not in found:
        raise StorageError(f"the triple store has no {name!r}: it was made for another job")
    return found[name]


def store_address(store: str, number: int, address: Address) -> Address:
    """Where randomness of a store lives: named by the store and the claimed number, not by the run."""
    return Address(f"{store}.{number}", address.iteration, address.stage, address.shard)


def correction_name(stage: str, label: str) -> str:
    return f"{stage}:{label}"


def stage_of(name: str) -> str:
    """The stage in a correction's name."""
    return name.partition(":")[0]


@lru_cache(maxsize=64)
def _mapped(path: Path) -> Arrays:
    """The arrays of a corrections file, mapped; a store's files never change."""
    if not path.exists():
        raise StorageError(f"the triple store has no file {path.name} in {path.parent}: make it again")
    with pa.memory_map(str(path)) as source:
        return from_stream(source)
