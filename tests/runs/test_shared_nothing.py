"""Workers that see nothing of their party but a shared place and a token: same shares, and nothing in the clear."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.commands import Ended
from support.isolated_workers import isolated_workers, namespace
from support.parties import NAMES, free_ports
from support.run_results import assignment_shares, read_checkpoint
from support.worlds import World, blobs, make_world, tables
from veilmeans.io.exchange.connections import attach_shared, load_identity
from veilmeans.io.files.party_files import detach, files_at
from veilmeans.io.files.secret_files import read_secret
from veilmeans.io.storage.run_token import make_token
from veilmeans.schemas.config import JobConfig

A, B = NAMES[:2]
ITERATIONS = 2
ISOLATED = pytest.mark.skipif(namespace() is None, reason="mount namespaces are not permitted here")


def new_world(folder: Path, **job: Any) -> World:
    """Two parties with their own columns, and their triple stores."""
    data = tables(blobs(150, 4), [f"c{i}" for i in range(4)], [2], axis=1)
    reveal = {"assignments": [A, B], "centroids": [B]}
    agreed = {"layout": "vertical", "clusters": 3, "max_iter": ITERATIONS, "reveal": reveal, **job}
    return make_world(folder, data, agreed, beam={"rows_per_shard": 64})


def move_store(config: JobConfig) -> None:
    """Move a triple store, but for its claims, to the shared place."""
    attach_shared(config)
    for file in config.store_folder.path.rglob("*"):
        if file.is_file():
            files_at(file).write(file, [file.read_bytes()])
            file.unlink()


def token_of(config: JobConfig) -> str:
    return make_token(read_secret(config.seed), config, load_identity(config).certificate).encode()


def train_isolated(world: World, flags: Sequence[str]) -> dict[str, Ended]:
    """Train with the workers of A elsewhere, and B as ever."""
    runner = flags[0].removeprefix("--runner=")
    beam = {"rounds": "stages", "runner": runner, "options": flags[1:], "attempts": 1}
    return world.altered(A, beam=beam).train_as_processes()


def shared_world(new: World, folder: Path) -> World:
    """A copy in which A's files are in `folder`/bucket, and all of them are kept."""
    workers = {"listen": f"127.0.0.1:{free_ports(1)[0]}"}
    world = new.copied(folder / "world").altered(
        A, shared=str(folder / "bucket"), workers=workers, audit={"keep": True}
    )
    move_store(world[A])
    return world


def secrets_of(new: JobConfig, config: JobConfig) -> list[bytes]:
    """Bytes that must not be found: keys and seeds, the party's values, its shares."""
    found = [read_secret(config.seed), read_secret(config.key)[40:80], read_secret(new.store_folder.number_seed(0))]
    found += [np.ascontiguousarray(share).tobytes()[:24] for share in assignment_shares(config)]
    found += [array.tobytes()[:16] for array in read_checkpoint(config, ITERATIONS).values() if array.nbytes >= 16]
    rows = next(config.storage.parent.glob("data.*")).read_bytes()
    return [*found, rows[200:232]]


@ISOLATED
@pytest.mark.processes
@pytest.mark.parametrize("engine", ["beaver", "he"])
def test_isolated_workers_compute_the_same_shares_and_leave_nothing_in_the_clear(engine: str, tmp_path: Path) -> None:
    new = new_world(tmp_path / "new", products=engine)
    local, world = new.copied(tmp_path / "local"), shared_world(new, tmp_path)
    local.train()
    try:
        with isolated_workers(world.folder, token_of(world[A]), tmp_path / "workers.log") as flags:
            ended = train_isolated(world, flags)
        assert {name: code for name, (code, _) in ended.items()} == {A: 0, B: 0}, ended
        for name in (A, B):
            here, there = (read_checkpoint(each[name], ITERATIONS) for each in (local, world))
            assert here.keys() == there.keys()
            for what, array in here.items():
                np.testing.assert_array_equal(array, there[what], strict=True)
            for one, other in zip(*(assignment_shares(each[name]) for each in (local, world)), strict=True):
                np.testing.assert_array_equal(one, other, strict=True)
            assert local.run_folder(name).assignments.read_bytes() == world.run_folder(name).assignments.read_bytes()
        objects = [file for file in (tmp_path / "bucket").rglob("*") if file.is_file()]
        assert len(objects) > 10
        assert not [file for file in objects if "scratch" in file.parts]
        secrets = secrets_of(new[A], world[A])
        assert len(secrets) > 5
        for file in objects:
            content = file.read_bytes()
            assert content.startswith(b"VM1\0")
            assert not [secret for secret in secrets if secret in content]
        assert not list(world[A].run_folder.path.rglob("*.arrow"))
    finally:
        detach(world[A].storage)


@ISOLATED
@pytest.mark.processes
def test_a_worker_without_a_token_says_so_in_one_sentence(tmp_path: Path) -> None:
    world = shared_world(new_world(tmp_path / "new"), tmp_path).altered(B, exchange={"timeout_s": 20})
    try:
        with isolated_workers(world.folder, None, tmp_path / "workers.log") as flags:
            code, output = train_isolated(world, flags)[A]
        assert code == 2
        assert "has no token of run 'test'" in output
        assert "Traceback" not in output
    finally:
        detach(world[A].storage)
