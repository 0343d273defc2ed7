"""Checkpoints: written completely or not at all; a damaged, missing or swapped one is refused by its name."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from support.parties import file_mode
from support.run_results import file_contents
from veilmeans.io.storage.checkpoints import Checkpoints, assignments, centroids
from veilmeans.schemas.arrays import Arrays
from veilmeans.schemas.errors import StorageError
from veilmeans.schemas.run_folder import ASSIGNMENTS, OPERANDS, RunFolder

ARRAYS: Arrays = {
    "mu": np.arange(6, dtype=np.uint64).reshape(3, 2),
    "stop": np.zeros(1, np.uint8),
    "none": np.zeros((3, 0), np.uint64),
}


@pytest.fixture
def store(tmp_path: Path) -> Checkpoints:
    return Checkpoints(RunFolder(tmp_path / "run"), b"key of payco")


def equal(left: Arrays, right: Arrays) -> bool:
    return list(left) == list(right) and all(np.array_equal(left[name], right[name]) for name in left)


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(StorageError) as error:
        call()
    return error.value.sentence


def test_arrays_are_read_with_their_types_and_shapes(store: Checkpoints) -> None:
    store.write(7, ARRAYS)
    store.write_shard(OPERANDS, 3, ARRAYS)
    for kind in (assignments(7), centroids(7)):
        store.write_shard(kind, 3, ARRAYS)
    for read in (store.read(7), *(store.read_shard(kind, 3) for kind in (OPERANDS, assignments(7), centroids(7)))):
        assert equal(read, ARRAYS)
        assert {name: (a.dtype, a.shape) for name, a in read.items()} == {
            name: (a.dtype, a.shape) for name, a in ARRAYS.items()
        }
        assert read["mu"].flags.aligned
    assert store.shards(OPERANDS) == [3]


def test_the_newest_checkpoint_has_the_highest_number(store: Checkpoints) -> None:
    assert store.newest() == -1
    for done in (0, 9, 10):
        store.write(done, ARRAYS)
        assert store.newest() == done


def test_equal_shares_give_equal_files_and_a_file_may_be_replaced(store: Checkpoints) -> None:
    store.write(1, ARRAYS)
    before = file_contents(store.folder.path)
    store.write(1, ARRAYS)
    assert file_contents(store.folder.path) == before
    store.write(1, {"mu": np.ones(1, np.uint64)})
    assert equal(store.read(1), {"mu": np.ones(1, np.uint64)})


def test_unfinished_copied_and_foreign_files_are_ignored(store: Checkpoints) -> None:
    store.write(1, ARRAYS)
    content = store.folder.checkpoint(1).read_bytes()
    for name in ("2.arrow.00ff.part", "3.arrow.part", "4 (copy).arrow", "old.arrow", "-5.arrow", "٦.arrow"):
        (store.folder.checkpoints / name).write_bytes(content[:100])
    assert store.newest() == 1
    assert equal(store.read(1), ARRAYS)


@pytest.mark.parametrize("step", ["write", "sync", "rename"])
def test_a_write_that_fails_leaves_the_old_file(store: Checkpoints, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    store.write(1, ARRAYS)
    before = file_contents(store.folder.path)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        owner, name = {"write": (Path, "open"), "sync": (os, "fsync"), "rename": (Path, "replace")}[step]
        patched.setattr(owner, name, full)
        sentence = refusal(lambda: store.write(1, {"mu": np.ones(1, np.uint64)}))
        assert f"{store.folder}/checkpoints is full" in sentence
    assert file_contents(store.folder.path) == before
    assert equal(store.read(1), ARRAYS)


def test_folders_are_for_this_user_only(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        store = Checkpoints(RunFolder(tmp_path / "run"), b"key")
        store.write(1, ARRAYS)
        store.write_shard(OPERANDS, 0, ARRAYS)
        store.write_shard(assignments(1), 0, ARRAYS)
    finally:
        os.umask(before)
    folders = [path for path in (store.folder.path, *store.folder.path.rglob("*")) if path.is_dir()]
    assert len(folders) == 5
    assert {file_mode(folder) for folder in folders} == {0o700}


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    sentence = refusal(lambda: Checkpoints(RunFolder(tmp_path / "run"), b"key").write(1, ARRAYS))
    assert f"{tmp_path}/run/checkpoints" in sentence


def damaged(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    return lambda file: file.write_bytes(change(file.read_bytes()))  # type: ignore[func-returns-value]


def flipped(at: int) -> Callable[[bytes], bytes]:
    def change(content: bytes) -> bytes:
        position = at % len(content)
        return content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :]

    return change


DAMAGES: dict[str, Callable[[Path], None]] = {
    "a bit of the tag flipped": damaged(flipped(0)),
    "a bit of the padding flipped": damaged(flipped(63)),
    "a bit of the schema flipped": damaged(flipped(70)),
    "a bit of the shares flipped": damaged(flipped(-100)),
    "the last bit flipped": damaged(flipped(-1)),
    "truncated by a byte": damaged(lambda content: content[:-1]),
    "truncated to the tag": damaged(lambda content: content[:64]),
    "truncated within the tag": damaged(lambda content: content[:10]),
    "empty": damaged(lambda content: b""),  # noqa: ARG005
    "longer": damaged(lambda content: content + b"\0"),
    "zeros": damaged(lambda content: bytes(len(content))),
    "a folder": lambda file: (file.unlink(), file.mkdir())[1],
    "gone": Path.unlink,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_named_with_the_checkpoint_to_remove(store: Checkpoints, damage: str) -> None:
    for done in (0, 2):
        store.write(done, ARRAYS)
        store.write_shard(centroids(done), 1, ARRAYS)
    store.write_shard(OPERANDS, 0, ARRAYS)
    store.write_shard(assignments(2), 1, ARRAYS)
    removable = f"remove {store.folder.checkpoint(2)}"
    for name, read, remedy in (
        ("checkpoints/2.arrow", lambda: store.read(2), "remove it"),
        ("checkpoints/0.arrow", lambda: store.read(0), None),
        ("operands/0.arrow", lambda: store.read_shard(OPERANDS, 0), None),
        ("assignments/2/1.arrow", lambda: store.read_shard(assignments(2), 1), removable),
        ("centroids/2/1.arrow", lambda: store.read_shard(centroids(2), 1), removable),
        ("centroids/0/1.arrow", lambda: store.read_shard(centroids(0), 1), None),
    ):
        DAMAGES[damage](store.folder.path / name)
        sentence = refusal(read)
        assert sentence.startswith(f"{store.folder.path / name} ")
        assert remedy in sentence if remedy else "remove" not in sentence
        assert ("is missing" in sentence) == (damage == "gone")


def test_a_file_under_another_name_is_refused(store: Checkpoints) -> None:
    """An older checkpoint under a newer name would use masks twice."""
    for done in (3, 4):
        store.write(done, ARRAYS)
    store.write_shard(assignments(3), 0, ARRAYS)
    folder = store.folder.path
    (folder / "checkpoints/3.arrow").replace(folder / "checkpoints/4.arrow")
    assert "is damaged" in refusal(lambda: store.read(4))
    (folder / "assignments/3/0.arrow").rename(folder / "assignments/3/1.arrow")
    assert "is damaged" in refusal(lambda: store.read_shard(assignments(3), 1))
    (folder / "assignments/3").rename(folder / "assignments/4")
    assert "is damaged" in refusal(lambda: store.read_shard(assignments(4), 1))


def test_another_key_is_refused_and_no_key_is_printed(store: Checkpoints) -> None:
    store.write(1, ARRAYS)
    other = Checkpoints(store.folder, b"key of shop")
    assert "is damaged" in refusal(lambda: other.read(1))
    assert "key of" not in repr(store)


def test_old_assignments_are_dropped_and_nothing_else(store: Checkpoints) -> None:
    for done in (8, 9, 10):
        store.write(done, ARRAYS)
        store.write_shard(assignments(done), 0, ARRAYS)
    (store.folder.shares(ASSIGNMENTS) / "notes").mkdir()
    store.drop(ASSIGNMENTS, before=9)
    assert sorted(folder.name for folder in store.folder.shares(ASSIGNMENTS).iterdir()) == ["10", "9", "notes"]
    assert store.newest() == 10
    assert equal(store.read(8), ARRAYS)
