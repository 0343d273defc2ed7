"""Workers that see nothing of their party but a shared place and a token: same bytes, and nothing in the clear."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.fault_injection import files_below
from support.faulty_bucket import faulty_bucket
from support.isolated_workers import ISOLATED, isolated_workers
from support.leak_search import Secrets
from support.object_search import planted_secrets, search
from support.prediction_world import prediction_config
from support.shared_places import (
    COLUMNS,
    ROWS,
    A,
    B,
    assert_same_openings,
    assert_same_results,
    objects_below,
    on_workers,
    opened,
    run_command,
    shared_world,
    token_of,
    vertical_world,
)
from support.worlds import DEALER, World, blobs, draw_secrets
from veilmeans.crypto import prg
from veilmeans.io.files.secret_files import read_secret
from veilmeans.schemas.arrays import Array, Real
from veilmeans.schemas.config import JobConfig
from veilmeans.transforms.offline.dealer import make_dealer_seed

pytestmark = [ISOLATED, pytest.mark.workers]

VALUES = blobs(ROWS, COLUMNS)
NEW_VALUES = (VALUES[:40] + VALUES[3:43]) / 2
"""Rows to be predicted: between two rows of one cluster, so that they are in the trained range."""
LATER = {"assignments": [A, B], "centroids": [A, B]}
"""What `reveal` opens after the training."""
ENGINES = {"beaver": None, "he": DEALER}
"""Who makes the triples: with `beaver` the parties themselves, with `he` a dealer."""


def new_world(folder: Path, engine: str) -> World:
    """A world in which all secrets are drawn that `offline` would draw, but for the keys of the engine he."""
    world = vertical_world(folder, ENGINES[engine], products=engine)
    for name, part in zip((A, B), np.split(NEW_VALUES, [2], axis=1), strict=True):
        columns = pq.read_schema(world.data(name)).names
        pq.write_table(pa.table(dict(zip(columns, part.T, strict=True))), folder / name / "new.parquet")
    for each in (world, prediction_of(world)):
        for config in each.configs.values():
            if config.party == config.dealer:
                (config.offline().run_folder.path).mkdir(parents=True, mode=0o700)
                make_dealer_seed(config.offline())
            elif config.dealer is None:
                draw_secrets(config)
    return world


def prediction_of(world: World) -> World:
    """The prediction of new rows by the trained model."""
    configs = {}
    for name, config in world.configs.items():
        rows = world.folder / name / "new.parquet" if name in world.parties else None
        configs[name] = prediction_config(config, rows, len(NEW_VALUES), {"assignments": [A, B]})
    return World(world.folder, configs)


def run_all_four(world: World, prediction: World) -> Iterator[str]:
    """Run all four commands, for the training and for the prediction; yield before each of the two."""
    yield token_of(world[A])
    run_command(world, "offline", world.configs)
    run_command(world, "train")
    run_command(world.altered(kmeans={"reveal": LATER}), "reveal")
    yield token_of(prediction[A])
    if DEALER in prediction.configs:  # else `predict` makes the triples that it needs
        run_command(prediction, "offline", prediction.configs)
    run_command(prediction, "predict")


def run_isolated(world: World, logs: Path, rounds: str) -> None:
    """Run all four commands with the workers of A elsewhere; those of each run have its token."""
    with ExitStack() as stack:
        flags = [
            stack.enter_context(isolated_workers(world.folder, token_of(each[A]), logs / f"workers-{number}.log"))
            for number, each in enumerate((world, prediction_of(world)))
        ]
        prediction = on_workers(prediction_of(world), flags[1], rounds)
        for _ in run_all_four(on_workers(world, flags[0], rounds), prediction):
            pass


def copy_cipher_keys(local: World, new: World) -> None:
    """Copy the random numbers that `offline` drew for the engine he, so that another `offline` makes the same store."""
    for name in local.parties:
        stores = local[name].storage_folder.stores
        for file in [*stores.glob("*/cipher.key"), *stores.glob("*/seeds/*.ciphers")]:
            target = new[name].storage_folder.stores / file.relative_to(stores)
            target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            shutil.copy2(file, target)


def own_files(config: JobConfig) -> dict[str, bytes]:
    """All that a party has in its storage."""
    return {name: (config.storage / name).read_bytes() for name in files_below(config.storage)}


# what must not be found
def planted_rows() -> Secrets:
    """Some rows of both parties, old and new."""
    values = np.concatenate([VALUES[:6], NEW_VALUES[:3]])
    return planted_secrets(values, (values - VALUES.min(axis=0)) / np.ptp(VALUES, axis=0))


def kept_arrays(files: Mapping[str, bytes]) -> Secrets:
    """Everything that lies in a party's own Arrow files: its shares, triples, ciphertexts and encoded rows."""
    shares: list[Array] = [np.frombuffer(data[: len(data) // 8 * 8], np.uint64) for name, data in files.items()
                           if name.endswith(".arrow") and not name.startswith("inbox")]  # fmt: skip
    assert sum(map(len, shares)) > 10_000
    return planted_secrets(np.zeros((0, 1)), np.zeros((0, 1)), shares)


def keys_of(config: JobConfig, files: Mapping[str, bytes]) -> Secrets:
    """A party's keys and seeds, and those of its stores."""
    seed, pem = read_secret(config.seed), read_secret(config.key)
    keys = [seed, prg.derive(seed, "shared files"), pem[40:80]]
    keys += [data for name, data in files.items() if "/seeds/" in name or name.endswith(("files.key", "cipher.key"))]
    assert len(keys) > 4
    nothing: Real = np.zeros((0, 1))
    return planted_secrets(nothing, nothing, [], keys, [token_of(config)[-40:]])


@pytest.mark.parametrize("engine", list(ENGINES))
def test_all_four_commands_by_isolated_workers_give_the_same_bytes_and_leave_nothing_in_the_clear(
    engine: str, tmp_path: Path
) -> None:
    """Whatever is in the place is what a local run has on its disk, sealed.

    With `beaver` the place is a bucket, and an iteration is one call; with `he` it is a folder, and a round is a stage.
    """
    new = new_world(tmp_path / "new", engine)
    local = new.copied(tmp_path / "local")
    for _ in run_all_four(local, prediction_of(local)):
        pass
    copy_cipher_keys(local, new)
    with ExitStack() as stack:
        bucket = stack.enter_context(faulty_bucket()) if engine == "beaver" else None
        world = stack.enter_context(shared_world(new, tmp_path, bucket))
        run_isolated(world, tmp_path, "stages" if bucket is None else "one_call")
        assert_same_results(local, world)
        assert_same_openings(prediction_of(local), prediction_of(world))
        objects = bucket.objects() if bucket is not None else objects_below(tmp_path / "bucket")
        files = own_files(local[A])
        contents = opened({name.removeprefix("payco/"): sealed for name, sealed in objects.items()}, world[A])
        assert [name for name, content in contents.items() if files.get(name) != content] == []
        assert [name for name in files if name.endswith(".arrow") and name not in contents] == []
        assert [name for name in own_files(world[A]) if name.endswith(".arrow")] == []
        for secrets in (planted_rows(), kept_arrays(files), keys_of(world[A], files)):
            assert search(contents, secrets) != []  # the search finds them where they are
            assert search(objects, secrets) == []


def test_a_worker_without_a_token_says_so_in_one_sentence(tmp_path: Path) -> None:
    new = new_world(tmp_path / "new", "he").altered(B, DEALER, exchange={"timeout_s": 20})
    with (
        shared_world(new, tmp_path) as world,
        isolated_workers(world.folder, None, tmp_path / "workers.log") as flags,
    ):
        world = on_workers(world, flags)
        ended = run_command(world, "offline", world.configs, succeeds=False)
    code, output = ended[A]
    assert code == 2
    assert "has no token of run" in output
    assert "Traceback" not in output
