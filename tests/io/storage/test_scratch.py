"""States at a barrier: kept, loaded and dropped, by value, in memory and in files."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from veilmeans.io.storage import scratch
from veilmeans.io.storage.scratch import Scratch
from veilmeans.schemas.address import Address
from veilmeans.schemas.errors import StorageError
from veilmeans.schemas.shard import Shard
from veilmeans.transforms.rounds.beam_serialisation import ShardCoder

HERE = Address("run", 0, "sums.00.share", 3)
STATE = {"x": np.arange(6, dtype=np.uint64).reshape(3, 2), "bits": np.ones(0, np.uint8)}


@pytest.fixture(params=["value", "memory/payco", "files"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scratch]:
    yield Scratch(str(tmp_path / "scratch") if request.param == "files" else request.param)
    scratch._memory.clear()


def carried(shard: Shard) -> Shard:
    """Return the shard as it comes out of a barrier."""
    return ShardCoder().decode(ShardCoder().encode(shard))


def assert_state(store: Scratch, shard: Shard, factor: int = 1) -> None:
    loaded = store.load(shard)
    assert list(loaded) == list(STATE)
    for name, array in STATE.items():
        np.testing.assert_array_equal(loaded[name], array * factor, strict=True)


def test_a_state_is_loaded_behind_the_barrier(store: Scratch) -> None:
    assert_state(store, carried(store.keep(HERE, STATE)))


def test_keeping_a_state_again_changes_nothing(store: Scratch) -> None:
    first, second = store.keep(HERE, STATE), store.keep(HERE, STATE)
    assert first.reference == second.reference
    assert_state(store, carried(first))
    assert_state(store, carried(second))


def test_states_of_different_shards_stages_and_runs_are_separate(store: Scratch) -> None:
    places = [HERE, Address("run", 0, HERE.stage, 4), Address("run", 0, "x", 3), Address("other", 0, HERE.stage, 3)]
    kept = [store.keep(where, {k: v * i for k, v in STATE.items()}) for i, where in enumerate(places)]
    for i, shard in enumerate(kept):
        assert_state(store, carried(shard), factor=i)
    store.drop(HERE)
    assert_state(store, kept[1], factor=1)
    store.clear("run")
    assert_state(store, carried(kept[3]), factor=3)


def test_a_state_may_be_dropped_twice_and_a_run_cleared_twice(store: Scratch) -> None:
    store.drop(HERE)
    store.keep(HERE, STATE)
    for _ in range(2):
        store.drop(HERE)
        store.clear("run")


@pytest.mark.parametrize("root", ["memory/payco", "files"])
def test_a_reference_is_short_and_a_dropped_state_is_deleted(tmp_path: Path, root: str) -> None:
    store = Scratch(str(tmp_path) if root == "files" else root)
    for forget in (lambda: store.drop(HERE), lambda: store.clear("run")):
        shard = store.keep(HERE, {"x": np.zeros(100_000, np.uint64)})
        assert len(ShardCoder().encode(shard)) < 300
        forget()
        with pytest.raises((KeyError, OSError)):
            store.load(shard)
    assert not list(tmp_path.rglob("*.arrow"))
    assert not scratch._memory


def test_files_leave_no_parts_behind_and_loaded_arrays_outlive_them(tmp_path: Path) -> None:
    store = Scratch(str(tmp_path))
    shard = store.keep(HERE, STATE)
    assert [file.name for file in tmp_path.rglob("*") if file.is_file()] == ["3.arrow"]
    loaded = store.load(shard)["x"]
    store.drop(HERE)
    np.testing.assert_array_equal(loaded, STATE["x"])
    assert not loaded.flags.writeable


def test_a_scratch_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=f"{tmp_path}/file"):
        Scratch(str(tmp_path / "file")).keep(HERE, STATE)
