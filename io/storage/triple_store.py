"""A party's triple store: a seed (0600), corrections in memory-mapped Arrow IPC files, and the claims of runs.

A store serves a number of runs of one job. It has addresses of its own, (store · run number, iteration, stage, shard),
so that the run's name does not matter. A run claims a number once: the same run with other data is refused, and a
number is never claimed twice. A party expands its shares from the seed, except those that all others determine
(`crypto.correlations`): these are corrections, one file for each run number, iteration and shard. Jobs with ciphertexts
have those that were made beforehand, too (`he_keyring` has the keys). All files are authenticated under a key of the
seed: corrections and ciphertexts by tags at their ends, seeds, keys and the manifest by tags in the manifest.
"""

import hmac
import json
import os
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path

from veilmeans.crypto import prg
from veilmeans.io.storage.atomic_files import disk_errors, make_private_folder
from veilmeans.io.storage.party_files import files_at, read_file_text, write_file_json
from veilmeans.io.storage.secret_files import read_secret, write_secret
from veilmeans.io.storage.tagged_files import DamagedFileError, map_tagged, write_tagged
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Array, Arrays, from_stream, to_batch
from veilmeans.schemas.errors import StorageError
from veilmeans.schemas.run_folder import StoreFolder

_TAGS = "tags"  # the manifest's field with the tags of the store's small files
_REMEDY = "restore the store from a backup, or make a new one with `veilmeans offline`"


@dataclass(frozen=True)
class Manifest:
    """The runs that a store serves; public. `plan`: the digest of all correlations that the job needs.

    `engines`: those selected for each party's distance and update, in the parties' order. `provider`: who made the
    correlations; those made by oblivious transfer are kept whole, with their uniform parts.
    """

    store: str
    runs: int
    iterations: int
    rows: int
    plan: str
    engines: tuple[tuple[str, ...], ...] = ()
    provider: str = "dealer"


@dataclass(frozen=True)
class TripleStore:
    """The triple store below one folder."""

    folder: StoreFolder
    manifest: Manifest
    seed: bytes = field(repr=False)

    @classmethod
    def create(cls, folder: StoreFolder, manifest: Manifest, seed: bytes) -> "TripleStore":
        """Make the folder and its seed; `complete` makes it usable."""
        make_private_folder(folder.claims)
        write_secret(folder.seed, seed)
        return cls(folder, manifest, seed)

    def complete(self) -> None:
        """Write the manifest: all corrections are there, and the store can be opened."""
        write_file_json(self.folder.manifest, {**asdict(self.manifest), _TAGS: self._tags()})

    @classmethod
    def open(cls, folder: StoreFolder) -> "TripleStore":
        """Open a complete store."""
        file = folder.manifest
        if not is_complete(folder):
            raise StorageError(f"there is no complete triple store in {folder}: run `veilmeans offline` first")
        try:
            content = json.loads(read_file_text(file))
            tags = dict(content.pop(_TAGS))
            engines = tuple(tuple(map(str, each)) for each in content.pop("engines", ()))
            manifest = Manifest(**content, engines=engines)
        except (ValueError, TypeError, AttributeError, KeyError):
            raise StorageError(f"{file} cannot be read: make the store again with `veilmeans offline`") from None
        store = cls(folder, manifest, read_secret(folder.seed))
        found = store._tags()
        for name, tag in tags.items():
            if found.get(name) != tag:
                what = f"{file} or {folder.seed}" if name == file.name else f"the key {folder.path / name}"
                raise StorageError(f"{what} is missing or damaged: {_REMEDY}")
        return store

    @cached_property
    def _file_key(self) -> bytes:
        """The key under which the store's files are authenticated; workers that only write have no seed."""
        return prg.derive(self.seed or read_secret(self.folder.seed), "files of a triple store")

    def _tags(self) -> dict[str, str]:
        """The tags of the manifest, which holds them, and of keys and seeds."""
        manifest = json.dumps(asdict(self.manifest), sort_keys=True).encode()
        folder, files = self.folder.path, files_at(self.folder.path)
        names = [name for name in files.names(folder) if name.startswith("cipher.")]
        keys = {name: files.read(folder / name).to_pybytes() for name in names}
        return {
            name: hmac.digest(self._file_key, name.encode() + b" " + content, "sha256").hex()
            for name, content in {self.folder.manifest.name: manifest, **keys}.items()
        }

    def runs_left(self) -> int:
        """Count the runs that the store can still serve."""
        return self.manifest.runs - self.next_number()

    def next_number(self) -> int:
        """Return the lowest number above all that were claimed."""
        return max(self.folder.claim_numbers(), default=-1) + 1

    def find_claim(self, run: str, binding: str) -> "StoreRun | None":
        """Return what `run` claimed before, or None; refuse it if it claimed for other data."""
        for number in self.folder.claim_numbers():
            claim = self._read_claim(self.folder.claim(number))
            if claim["run"] == run:
                if claim["binding"] != binding:
                    raise StorageError(
                        f"run {run!r} has used masks of the store {self.manifest.store!r} for other data or another "
                        "configuration: choose a new run id"
                    )
                return StoreRun(self, number)
        return None

    def claim(self, number: int, run: str, binding: str) -> "StoreRun":
        """Claim a number for `run`; it is never free again."""
        claimed = self.find_claim(run, binding)
        if claimed is not None:
            return claimed
        self.check_suffices(runs=1)
        if number < self.next_number() or number >= self.manifest.runs:
            raise self._not_free(number, run)
        part = self.folder.unfinished_claim(number, run)
        with disk_errors(self.folder.path):
            try:
                part.touch(mode=0o600)
                with part.open("w") as file:
                    file.write(json.dumps({"run": run, "binding": binding}))
                    file.flush()
                    os.fsync(file.fileno())  # a claim must outlive the masks that it stands for
                os.link(part, self.folder.claim(number))
            except FileExistsError:  # another run of this party claimed it first
                raise self._not_free(number, run) from None
            finally:
                part.unlink(missing_ok=True)
        return StoreRun(self, number)

    def _read_claim(self, file: Path) -> dict[str, str]:
        try:
            claim = json.loads(file.read_text())
            return {"run": str(claim["run"]), "binding": str(claim["binding"])}
        except (OSError, ValueError, KeyError, TypeError):
            raise StorageError(
                f"{file} cannot be read, so it is unknown which run used the store {self.manifest.store!r}: "
                "make a new store with `veilmeans offline`"
            ) from None

    def _not_free(self, number: int, run: str) -> StorageError:
        return StorageError(f"number {number} of the store {self.manifest.store!r} is not free for run {run!r}")

    def check_suffices(self, runs: int = 0, iterations: int = 0, plan: str | None = None) -> None:
        """Refuse a run, before it starts, for which the store does not suffice."""
        name, manifest = self.manifest.store, self.manifest
        if plan is not None and plan != manifest.plan:
            raise StorageError(
                f"the store {name!r} was made for another job or other shapes ({manifest.rows:,} rows): "
                "make one for this job with `veilmeans offline`"
            )
        if iterations > manifest.iterations:
            raise StorageError(
                f"the store {name!r} serves {manifest.iterations:,} iterations a run, and the job may need "
                f"{iterations:,}: make a store for {iterations - manifest.iterations:,} more with `veilmeans offline`"
            )
        if runs > self.runs_left():
            raise StorageError(
                f"the store {name!r} serves {manifest.runs:,} runs and has {self.runs_left():,} left, {runs:,} needed: "
                "make a new store with `veilmeans offline`"
            )

    def write_corrections(self, number: int, iteration: int, shard: int, arrays: Arrays) -> None:
        """Write this party's corrections for one shard of one iteration."""
        self._write(self.folder.corrections(number, iteration, shard), arrays)

    def has_corrections(self, number: int, iteration: int, shard: int) -> bool:
        return _exists(self.folder.corrections(number, iteration, shard))

    def corrections(self, number: int, iteration: int, shard: int) -> Arrays:
        return self._map(self.folder.corrections(number, iteration, shard))

    def write_ciphertexts(self, number: int, iteration: int, shard: int, arrays: Arrays) -> None:
        self._write(self.folder.ciphertexts(number, iteration, shard), arrays)

    def has_ciphertexts(self, number: int, iteration: int, shard: int) -> bool:
        return _exists(self.folder.ciphertexts(number, iteration, shard))

    def ciphertexts(self, number: int, iteration: int, shard: int) -> Arrays:
        return self._map(self.folder.ciphertexts(number, iteration, shard))

    def _write(self, path: Path, arrays: Arrays) -> None:
        write_tagged(path, self._file_key, self._name(path), to_batch(arrays))

    def _map(self, path: Path) -> Arrays:
        return _map_arrays(path, self._file_key, self._name(path))

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self.folder.path))


@dataclass(frozen=True)
class StoreRun:
    """The part of a triple store that one run has claimed.

    `once`: for what is done once in a run, in whichever iteration; the store has it with its first.
    """

    store: TripleStore
    number: int
    once: bool = field(default=False, kw_only=True)

    @property
    def seed(self) -> bytes:
        return self.store.seed

    @property
    def made_by_ot(self) -> bool:
        """True if the store has all parts of the correlations that OTs make."""
        return self.store.manifest.provider != "dealer"

    def at(self, address: Address) -> Address:
        """Return the store's own address for an address of the run."""
        return store_address(
            self.store.manifest.store, self.number, replace(address, iteration=self._iteration(address))
        )

    def has_corrections(self, iteration: int, shard: int) -> bool:
        """True if the store has corrections for this shard."""
        return self.store.has_corrections(self.number, iteration, shard)

    def correction(self, address: Address, label: str) -> Array:
        """Return this party's corrected share under `label`."""
        return _pick(self.store.corrections(self.number, self._iteration(address), address.shard), address, label)

    def ciphertexts(self, address: Address, label: str) -> Array:
        """Return the ciphertexts that were made beforehand under `label`."""
        return _pick(self.store.ciphertexts(self.number, self._iteration(address), address.shard), address, label)

    def _iteration(self, address: Address) -> int:
        return 0 if self.once else address.iteration


def _pick(arrays: Arrays, address: Address, label: str) -> Array:
    name = correction_name(address.stage, label)
    if name not in arrays:
        raise StorageError(f"the triple store has no {name!r}: it was made for another job")
    return arrays[name]


def store_address(store: str, number: int, address: Address) -> Address:
    """Replace an address's run by the store and the claimed number: the address of the store's randomness."""
    return Address(f"{store}.{number}", address.iteration, address.stage, address.shard)


def correction_name(stage: str, label: str) -> str:
    """Name an array of a corrections file."""
    return f"{stage}:{label}"


def stage_of(name: str) -> str:
    """Return the stage in the name of an array of a corrections file."""
    return name.partition(":")[0]


def is_complete(folder: StoreFolder) -> bool:
    """Return whether a store is complete and can be opened."""
    return _exists(folder.manifest)


def _exists(path: Path) -> bool:
    return files_at(path).exists(path)


@lru_cache(maxsize=64)
def _map_arrays(path: Path, key: bytes, name: str) -> Arrays:
    """Map the arrays of a store's file and check them; it never changes."""
    if not _exists(path):
        raise StorageError(f"the triple store has no file {path.name} in {path.parent}: make the store again")
    try:
        return from_stream(map_tagged(path, key, name))
    except DamagedFileError:
        raise StorageError(f"{path} is damaged: {_REMEDY}") from None
