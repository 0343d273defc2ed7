"""A party's triple store: seeds (0600), corrections in memory-mapped Arrow IPC files, and the claims of runs.

A store serves a number of runs of one job. It has addresses of its own, (store · run number, iteration, stage, shard),
so that the run's name does not matter. A run claims a number once: the same run with other data is refused, and a
number is never claimed twice. A party expands its shares from the number's seed, except those that all others determine
(`crypto.correlations`): these are corrections, one file for each run number, iteration and shard. Jobs with ciphertexts
have those that were made beforehand, too (`he_keyring` has the keys). When a run has ended, its number's seeds,
corrections and ciphertexts are deleted. All files are authenticated under a key of the store: seeds, corrections and
ciphertexts by tags at their ends, keys and the manifest by tags in the manifest.
"""

import hmac
import json
import os
import threading
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path

from veilmeans.io.files.atomic_files import disk_errors, make_private_folder, parse_json
from veilmeans.io.files.party_files import files_at, read_file_text, write_file_json
from veilmeans.io.files.secret_files import read_secret, write_secret
from veilmeans.io.files.tagged_files import DamagedFileError, map_tagged, write_tagged
from veilmeans.io.storage.number_seeds import (
    derive_file_key,
    derive_number_seed,
    read_file_key,
    read_number_seed,
    write_number_seed,
)
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Array, Arrays, from_stream, nbytes, to_batch
from veilmeans.schemas.errors import StorageError
from veilmeans.schemas.run_folder import StoreFolder

_TAGS = "tags"  # the manifest's field with the tags of the store's small files
CHECKED = "checked"
"""The binding in the claim of a number that was opened to be checked."""
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
    """The triple store below one folder. `seed`: while it is made, the seed of the numbers' seeds; else empty."""

    folder: StoreFolder
    manifest: Manifest
    seed: bytes = field(repr=False, compare=False)

    @classmethod
    def create(cls, folder: StoreFolder, manifest: Manifest, seed: bytes) -> "TripleStore":
        """Make the folder and its seed; `complete` makes it usable."""
        make_private_folder(folder.claims)
        if files_at(folder.path).exists(folder.file_key) and read_secret(folder.file_key) != derive_file_key(seed):
            raise StorageError(f"{folder} is a store of another seed and is not overwritten: choose another name")
        if not is_complete(folder):
            write_secret(folder.seed, seed)
        return cls(folder, manifest, seed)

    def complete(self, numbers: Iterable[int] | None = None) -> None:
        """Write the numbers' seeds and the manifest: all is there, and the store can be opened.

        `numbers`: all that the store has, if they are more than its runs.
        """
        if not is_complete(self.folder):
            for number in range(self.manifest.runs) if numbers is None else numbers:
                write_number_seed(self.folder.number_seed(number), self._file_key, self.seed_of(number))
            write_secret(self.folder.file_key, self._file_key)
            write_file_json(self.folder.manifest, {**asdict(self.manifest), _TAGS: self._tags()})
        self.drop_first_seed()

    def drop_first_seed(self) -> None:
        """Delete the seed of all numbers' seeds: a number's seed can be forgotten only without it."""
        files_at(self.folder.path).delete(self.folder.seed)

    def forget(self, number: int) -> None:
        """Delete what only the run with this number needed."""
        files = files_at(self.folder.path)
        for seed in (self.folder.number_seed(number), self.folder.mask_seed(number)):
            files.delete(seed)
        for arrays in (self.folder.all_corrections, self.folder.all_ciphertexts):
            files.delete_folder(arrays / str(number))

    @classmethod
    def open(cls, folder: StoreFolder) -> "TripleStore":
        """Open a complete store."""
        file = folder.manifest
        if not is_complete(folder):
            raise StorageError(f"there is no complete triple store in {folder}: run `veilmeans offline` first")
        try:
            content = parse_json(read_file_text(file))
            tags = dict(content.pop(_TAGS))
            engines = tuple(tuple(map(str, each)) for each in content.pop("engines", ()))
            manifest = Manifest(**content, engines=engines)
        except (ValueError, TypeError, AttributeError, KeyError):
            raise StorageError(f"{file} cannot be read: make the store again with `veilmeans offline`") from None
        store = cls(folder, manifest, b"")
        read_secret(folder.file_key)
        found = store._tags()
        for name, tag in tags.items():
            if found.get(name) != tag:
                what = f"{file} or {folder.file_key}" if name == file.name else f"the key {folder.path / name}"
                raise StorageError(f"{what} is missing or damaged: {_REMEDY}")
        return store

    @cached_property
    def _file_key(self) -> bytes:
        """The key under which the store's files are authenticated; workers that only write have no seed."""
        return derive_file_key(self.seed) if self.seed else read_file_key(self.folder)

    @property
    def identity(self) -> str:
        """A public name of this store that no other store has."""
        return hmac.digest(self._file_key, b"identity of a triple store", "sha256").hex()[:16]

    def seed_of(self, number: int) -> bytes:
        """The seed of this party's shares for the run with this number."""
        if self.seed:
            return derive_number_seed(self.seed, number)
        return read_number_seed(self.folder.number_seed(number), self._file_key)

    def _tags(self) -> dict[str, str]:
        """The tags of the manifest, which holds them, and of keys and seeds."""
        manifest = json.dumps(asdict(self.manifest), sort_keys=True).encode()
        folder, files = self.folder.path, files_at(self.folder.path)
        names = sorted(name for name in files.names(folder) if name.startswith("cipher."))
        keys = {name: files.read(folder / name).to_pybytes() for name in names}
        return {
            name: hmac.digest(self._file_key, name.encode() + b" " + content, "sha256").hex()
            for name, content in {self.folder.manifest.name: manifest, **keys}.items()
        }

    def runs_left(self) -> int:
        """Count the runs that the store can still serve."""
        return len(self.spare_numbers())

    def next_number(self) -> int:
        """Return the lowest free number above all that runs have claimed; those that were checked lie anywhere."""
        claims = self.claims()
        number = max((each for each, claim in claims.items() if claim["binding"] != CHECKED), default=-1) + 1
        while number in claims:
            number += 1
        return number

    def spare_numbers(self) -> list[int]:
        """List the numbers that runs can still claim."""
        claimed = set(self.folder.claim_numbers())
        return [number for number in range(self.next_number(), self.manifest.runs) if number not in claimed]

    def check_number(self, number: int, check: str) -> None:
        """Claim a spare number for a check, which opens its correlations."""
        claim = self.claims().get(number)
        if claim is None:
            self._write_claim(number, check, CHECKED)
        elif claim["run"] != check:
            raise self._not_free(number, check)

    def claims(self) -> dict[int, dict[str, str]]:
        """Read all claims: number -> run and binding."""
        return {number: self._read_claim(self.folder.claim(number)) for number in self.folder.claim_numbers()}

    def find_claim(self, run: str, binding: str) -> "StoreRun | None":
        """Return what `run` claimed before, or None; refuse it if it claimed for other data."""
        for number, claim in self.claims().items():
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
        self._write_claim(number, run, binding)
        return StoreRun(self, number)

    def _write_claim(self, number: int, run: str, binding: str) -> None:
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

    def _read_claim(self, file: Path) -> dict[str, str]:
        try:
            claim = parse_json(file.read_text())
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
        return _mapped.read(path, self._file_key, self._name(path))

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
        """The seed of this party's shares for this run."""
        return self.store.seed_of(self.number)

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


def _read_arrays(path: Path, key: bytes, name: str) -> Arrays:
    """Map the arrays of a store's file and check them."""
    if not _exists(path):
        raise StorageError(f"the triple store has no file {path.name} in {path.parent}: make the store again")
    try:
        return from_stream(map_tagged(path, key, name))
    except DamagedFileError:
        raise StorageError(f"{path} is damaged: {_REMEDY}") from None


class _MappedFiles:
    """The files of stores that were read last, which never change, up to some bytes of them.

    Mapped pages count as memory of the process until a file is unmapped: as many as a store has shards would grow
    with its rows.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self._size = limit, 0
        self._files: dict[tuple[Path, bytes], Arrays] = {}
        self._lock = threading.Lock()

    def read(self, path: Path, key: bytes, name: str) -> Arrays:
        """Read the arrays of a file; those before it stay mapped as long as there is room, the last used longest."""
        with self._lock:
            arrays = self._files.pop((path, key), None)
            if arrays is not None:
                self._files[path, key] = arrays
                return arrays
        arrays = _read_arrays(path, key, name)
        with self._lock:
            if self._files.setdefault((path, key), arrays) is arrays:
                self._size += nbytes(arrays)
            while self._size > self._limit and len(self._files) > 1:
                oldest = next(iter(self._files))
                self._size -= nbytes(self._files.pop(oldest))
        return arrays


_mapped = _MappedFiles(32 << 20)
