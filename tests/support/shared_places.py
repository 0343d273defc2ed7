"""Worlds in which the files of payco are sealed objects in a shared place, and its workers see nothing else."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from support.commands import Ended, start_command
from support.faulty_bucket import PLACE, FaultyBucket
from support.parties import NAMES, free_ports
from support.run_results import assignment_shares, read_checkpoint
from support.worlds import World, blobs, make_world_without_stores, tables
from veilmeans.crypto import prg
from veilmeans.io.exchange.connections import attach_shared, load_identity
from veilmeans.io.files.party_files import detach, files_at
from veilmeans.io.files.secret_files import read_secret
from veilmeans.io.files.shared_files import unseal
from veilmeans.io.storage.run_token import make_token
from veilmeans.schemas.arrays import Array
from veilmeans.schemas.config import JobConfig

A, B = NAMES[:2]
COLUMNS, ROWS = 4, 150


def vertical_world(folder: Path, dealer: str | None = None, **job: Any) -> World:
    """Two parties with their own columns, without triple stores; both keep all that a run makes."""
    data = tables(blobs(ROWS, COLUMNS), [f"c{i}" for i in range(COLUMNS)], [2], axis=1)
    reveal = {"assignments": [A, B], "centroids": [B]}
    agreed = {"layout": "vertical", "clusters": 3, "max_iter": 2, "reveal": reveal, **job}
    return make_world_without_stores(
        folder, data, agreed, beam={"rows_per_shard": 64}, dealer=dealer, audit={"keep": True}
    )


def token_of(config: JobConfig) -> str:
    """The token of a run's workers."""
    return make_token(read_secret(config.seed), config, load_identity(config).certificate).encode()


def move_to_place(config: JobConfig, *folders: Path) -> None:
    """Move files of a party from its disk to the shared place; a store's claims stay."""
    attach_shared(config)
    for file in [file for folder in folders for file in folder.rglob("*") if file.is_file()]:
        files_at(file).write(file, [file.read_bytes()])
        file.unlink()


@contextmanager
def shared_world(new: World, folder: Path, bucket: FaultyBucket | None = None) -> Iterator[World]:
    """A copy in which A's files, with its triple stores, are in `folder`/bucket or in an emulated one."""
    place, options = (PLACE, bucket.flags) if bucket is not None else (str(folder / "bucket"), [])
    workers = {"listen": f"127.0.0.1:{free_ports(1)[0]}"}
    world = new.copied(folder / "world").altered(A, shared=place, workers=workers, beam={"options": options})
    move_to_place(world[A], world[A].storage_folder.stores)
    try:
        yield world
    finally:
        detach(world[A].storage)


def on_workers(world: World, flags: Sequence[str], rounds: str = "one_call") -> World:
    """A world in which A uses the workers that `flags` name; `rounds`: as in `beam.rounds`."""
    runner, options = flags[0].removeprefix("--runner="), [*flags[1:], *world[A].beam.options]
    return world.altered(A, beam={"rounds": rounds, "runner": runner, "options": options, "attempts": 1})


def run_command(
    world: World, command: str, configs: Mapping[str, JobConfig] | None = None, succeeds: bool = True
) -> dict[str, Ended]:
    """Run a command of all parties, or of others, as processes."""
    running = {
        name: start_command(command, config, world.folder) for name, config in (configs or world.parties).items()
    }
    ended: dict[str, Ended] = {}
    for name, each in running.items():
        ended[name] = each.wait()
        if succeeds and ended[name][0]:
            for other in running.values():
                other.kill()  # it would wait for this one
            raise AssertionError(ended)
    return ended


# what lies in a place
def objects_below(folder: Path) -> dict[str, bytes]:
    """All objects of a place that is a folder, by their names."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def opened(objects: Mapping[str, bytes], config: JobConfig) -> dict[str, bytes]:
    """The contents of all objects of a place, which must be sealed under their names."""
    key = prg.derive(read_secret(config.seed), "shared files")
    return {name: unseal(key, name, sealed) for name, sealed in objects.items()}


# results
def final_arrays(world: World) -> dict[str, Array]:
    """All that the parties keep of the last iteration, by party and name."""
    found: dict[str, Array] = {}
    for name, config in world.parties.items():
        found |= {f"{name}/{what}": array for what, array in read_checkpoint(config).items()}
        found |= {f"{name}/rows/{shard}": array for shard, array in enumerate(assignment_shares(config))}
    return found


def assert_same_results(one: World, other: World) -> None:
    """Check that two runs ended with the same shares and the same opened results, bit for bit."""
    here, there = final_arrays(one), final_arrays(other)
    assert here.keys() == there.keys()
    for what, array in here.items():
        np.testing.assert_array_equal(array, there[what], strict=True)
    assert_same_openings(one, other)


def assert_same_openings(one: World, other: World) -> None:
    """Check that two runs opened the same results."""
    for name in one.parties:
        folders = one.run_folder(name), other.run_folder(name)
        results = [{file.name: file.read_bytes() for file in folder.path.glob("*.parquet")} for folder in folders]
        assert results[0] == results[1]
        facts = [json.loads(folder.result.read_text()) for folder in folders]
        assert facts[0].keys() == facts[1].keys()
