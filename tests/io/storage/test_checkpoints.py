"""Checkpoints: there whole or not at all; a damaged, missing or swapped one is refused with a sentence that helps."""

import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from support.parties import mode_of
from support.train_world import BOTH, Strike, World, contents, make_world, results, sentences, shares
from veilmeans.io.storage.checkpoints import ASSIGNMENTS, OPERANDS, Checkpoints, assignments, centroids
from veilmeans.schemas.arrays import Arrays
from veilmeans.schemas.errors import StorageError

ARRAYS: Arrays = {
    "mu": np.arange(6, dtype=np.uint64).reshape(3, 2),
    "stop": np.zeros(1, np.uint8),
    "none": np.zeros((3, 0), np.uint64),
}


@pytest.fixture
def store(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path / "run", b"key of payco")


def equal(left: Arrays, right: Arrays) -> bool:
    return list(left) == list(right) and all(np.array_equal(left[name], right[name]) for name in left)


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(StorageError) as error:
        call()
    return error.value.sentence


def test_what_was_written_is_read_with_types_and_shapes(store: Checkpoints) -> None:
    store.write(7, ARRAYS)
    store.write_shard(OPERANDS, 3, ARRAYS)
    for kind in (assignments(7), centroids(7)):
        store.write_shard(kind, 3, ARRAYS)
    for found in (store.read(7), *(store.read_shard(kind, 3) for kind in (OPERANDS, assignments(7), centroids(7)))):
        assert equal(found, ARRAYS)
        assert {name: (a.dtype, a.shape) for name, a in found.items()} == {
            name: (a.dtype, a.shape) for name, a in ARRAYS.items()
        }
        assert found["mu"].flags.aligned
    assert store.has_shard(OPERANDS, 3)
    assert not store.has_shard(OPERANDS, 4)


def test_the_newest_is_the_one_of_the_highest_number(store: Checkpoints) -> None:
    assert store.newest() == -1
    for done in (0, 9, 10):
        store.write(done, ARRAYS)
        assert store.newest() == done


def test_equal_shares_are_equal_files_and_a_file_may_be_written_again(store: Checkpoints) -> None:
    store.write(1, ARRAYS)
    before = contents(store.folder)
    store.write(1, ARRAYS)
    assert contents(store.folder) == before
    store.write(1, {"mu": np.ones(1, np.uint64)})
    assert equal(store.read(1), {"mu": np.ones(1, np.uint64)})


def test_parts_copies_and_foreign_files_are_not_seen(store: Checkpoints) -> None:
    store.write(1, ARRAYS)
    whole = (store.folder / "checkpoints/1.arrow").read_bytes()
    for name in ("2.arrow.00ff.part", "3.arrow.part", "4 (copy).arrow", "old.arrow", "-5.arrow", "٦.arrow"):
        (store.folder / "checkpoints" / name).write_bytes(whole[:100])
    assert store.newest() == 1
    assert equal(store.read(1), ARRAYS)


@pytest.mark.parametrize("step", ["write", "sync", "rename"])
def test_a_write_that_fails_leaves_what_was_there(
    store: Checkpoints, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    store.write(1, ARRAYS)
    before = contents(store.folder)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        owner, name = {"write": (Path, "open"), "sync": (os, "fsync"), "rename": (Path, "replace")}[step]
        patched.setattr(owner, name, full)
        said = refusal(lambda: store.write(1, {"mu": np.ones(1, np.uint64)}))
        assert "is full: free some space and start again; nothing is lost" in said
        assert str(store.folder) in said
    assert contents(store.folder) == before
    assert equal(store.read(1), ARRAYS)


def test_folders_are_for_this_user_only(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        store = Checkpoints(tmp_path / "run", b"key")
        store.write(1, ARRAYS)
        store.write_shard(OPERANDS, 0, ARRAYS)
        store.write_shard(assignments(1), 0, ARRAYS)
    finally:
        os.umask(before)
    folders = [path for path in (store.folder, *store.folder.rglob("*")) if path.is_dir()]
    assert len(folders) == 5
    assert {mode_of(folder) for folder in folders} == {0o700}


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    said = refusal(lambda: Checkpoints(tmp_path / "run", b"key").write(1, ARRAYS))
    assert f"{tmp_path}/run/checkpoints cannot be written" in said


def damaged(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    return lambda file: file.write_bytes(change(file.read_bytes()))  # type: ignore[func-returns-value]


def flipped(at: int) -> Callable[[bytes], bytes]:
    def change(whole: bytes) -> bytes:
        at_ = at % len(whole)
        return whole[:at_] + bytes([whole[at_] ^ 1]) + whole[at_ + 1 :]

    return change


DAMAGES: dict[str, Callable[[Path], None]] = {
    "a bit of the tag flipped": damaged(flipped(0)),
    "a bit of the padding flipped": damaged(flipped(63)),
    "a bit of the schema flipped": damaged(flipped(70)),
    "a bit of the shares flipped": damaged(flipped(-100)),
    "the last bit flipped": damaged(flipped(-1)),
    "truncated by a byte": damaged(lambda whole: whole[:-1]),
    "truncated to the tag": damaged(lambda whole: whole[:64]),
    "truncated within the tag": damaged(lambda whole: whole[:10]),
    "empty": damaged(lambda whole: b""),  # noqa: ARG005
    "longer": damaged(lambda whole: whole + b"\0"),
    "zeros": damaged(lambda whole: bytes(len(whole))),
    "a folder": lambda file: (file.unlink(), file.mkdir())[1],
    "gone": Path.unlink,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_refused_by_its_name(store: Checkpoints, damage: str) -> None:
    for done in (0, 2):
        store.write(done, ARRAYS)
        store.write_shard(centroids(done), 1, ARRAYS)
    store.write_shard(OPERANDS, 0, ARRAYS)
    store.write_shard(assignments(2), 1, ARRAYS)
    backup, remove = "restore it from a backup", "a run that is not finished"
    for name, read, advice in (
        ("checkpoints/2.arrow", lambda: store.read(2), f"{backup}, or remove it: {remove} goes on from the checkpoint"),
        ("checkpoints/0.arrow", lambda: store.read(0), f"{backup}, or start a new run id"),
        ("operands/0.arrow", lambda: store.read_shard(OPERANDS, 0), f"{backup}, or start a new run id"),
        (
            "assignments/2/1.arrow",
            lambda: store.read_shard(assignments(2), 1),
            f"{backup}, or remove {store.folder}/checkpoints/2.arrow: {remove} does that iteration again",
        ),
        (
            "centres/2/1.arrow",
            lambda: store.read_shard(centroids(2), 1),
            f"{backup}, or remove {store.folder}/checkpoints/2.arrow: {remove} does that iteration again",
        ),
        ("centres/0/1.arrow", lambda: store.read_shard(centroids(0), 1), f"{backup}, or start a new run id"),
    ):
        DAMAGES[damage](store.folder / name)
        said = refusal(read)
        assert said.startswith(f"{store.folder / name} ")
        assert f": {advice}" in said
        assert ("is missing" in said) == (damage == "gone")


def test_files_do_not_take_each_others_places(store: Checkpoints) -> None:
    """An older checkpoint under a newer one's name would use masks twice."""
    for done in (3, 4):
        store.write(done, ARRAYS)
    store.write_shard(assignments(3), 0, ARRAYS)
    folder = store.folder
    (folder / "checkpoints/3.arrow").replace(folder / "checkpoints/4.arrow")
    assert "is damaged" in refusal(lambda: store.read(4))
    (folder / "assignments/3/0.arrow").rename(folder / "assignments/3/1.arrow")
    assert "is damaged" in refusal(lambda: store.read_shard(assignments(3), 1))
    (folder / "assignments/3").rename(folder / "assignments/4")
    assert "is damaged" in refusal(lambda: store.read_shard(assignments(4), 1))


def test_another_key_is_refused_and_no_key_is_shown(store: Checkpoints) -> None:
    store.write(1, ARRAYS)
    other = Checkpoints(store.folder, b"key of shop")
    assert "is damaged or was made by another seed" in refusal(lambda: other.read(1))
    assert "key of" not in repr(store)


def test_old_assignments_are_dropped_and_nothing_else(store: Checkpoints) -> None:
    for done in (8, 9, 10):
        store.write(done, ARRAYS)
        store.write_shard(assignments(done), 0, ARRAYS)
    (store.folder / "assignments/notes").mkdir()
    store.drop(ASSIGNMENTS, before=9)
    assert sorted(folder.name for folder in (store.folder / "assignments").iterdir()) == ["10", "9", "notes"]
    assert store.newest() == 10
    assert equal(store.read(8), ARRAYS)


# Runs whose files were damaged while they stood still.
@pytest.fixture(scope="module")
def halfway(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Two iterations of four are done, and both parties have died. There are column shards of three and of one."""
    root = tmp_path_factory.mktemp("halfway")
    world = make_world(root / "world", "vertical", cells=9, max_iter=4).altered(exchange={"timeout_s": 20})
    return killed(world, "checkpoints/3.arrow")


@pytest.fixture(scope="module")
def iterated(halfway: World, tmp_path_factory: pytest.TempPathFactory) -> World:
    """All iterations are done, nothing is opened, and both parties have died."""
    return killed(halfway.copied(tmp_path_factory.mktemp("iterated") / "world"), "finished.json")


@pytest.fixture(scope="module")
def trained(iterated: World, tmp_path_factory: pytest.TempPathFactory) -> World:
    return finished(iterated.copied(tmp_path_factory.mktemp("trained") / "world"))


def killed(world: World, what: str) -> World:
    running = [world.start(name, Strike(what, event="os.rename")) for name in BOTH]
    assert [each.wait()[0] for each in running] == [-signal.SIGKILL] * 2
    return world


def finished(world: World) -> World:
    ended = world.train()
    assert [code for code, _ in ended.values()] == [0, 0], ended
    return world


def refused(world: World, *expected: str) -> None:
    """Payco, started alone, ends with code 8 and one sentence, and leaves everything that was there as it was."""
    before = contents(world.folder / "payco/storage")
    code, output = world.start("payco").wait()
    said = sentences(output)
    assert (code, len(said)) == (8, 1), output
    assert "Traceback" not in output
    for part in expected:
        assert part in said[0]
    after = contents(world.folder / "payco/storage")
    assert {name: after.get(name) for name in before} == before


def test_a_run_goes_on_without_its_damaged_newest_checkpoint(tmp_path: Path, iterated: World, trained: World) -> None:
    world = iterated.copied(tmp_path / "world")
    newest = world.kept("payco") / "checkpoints/4.arrow"
    DAMAGES["a bit of the shares flipped"](newest)
    refused(
        world, f"{newest} is damaged", "or remove it: a run that is not finished goes on from the checkpoint before"
    )
    newest.unlink()
    assert shares(finished(world)) == shares(trained)
    assert results(world) == results(trained)


def test_a_run_goes_on_in_the_middle_without_its_newest_checkpoint(
    tmp_path: Path, halfway: World, trained: World
) -> None:
    """At both parties."""
    world = halfway.copied(tmp_path / "world")
    for name in BOTH:
        (world.kept(name) / "checkpoints/2.arrow").unlink()
    assert shares(finished(world)) == shares(trained)


def test_damaged_assignments_are_made_again_if_their_checkpoint_is_removed(
    tmp_path: Path, iterated: World, trained: World
) -> None:
    world = iterated.copied(tmp_path / "world")
    kept = world.kept("payco")
    DAMAGES["empty"](kept / "assignments/4/1.arrow")
    refused(world, f"{kept}/assignments/4/1.arrow is damaged", f"or remove {kept}/checkpoints/4.arrow")
    (kept / "checkpoints/4.arrow").unlink()
    assert shares(finished(world)) == shares(trained)


def test_damaged_centroids_are_made_again_if_their_checkpoint_is_removed(
    tmp_path: Path, iterated: World, trained: World
) -> None:
    world = iterated.copied(tmp_path / "world")
    kept = world.kept("payco")
    assert sorted(file.name for file in (kept / "centres/4").iterdir()) == ["0.arrow", "1.arrow"]
    DAMAGES["the last bit flipped"](kept / "centres/4/1.arrow")
    refused(world, f"{kept}/centres/4/1.arrow is damaged", f"or remove {kept}/checkpoints/4.arrow")
    (kept / "checkpoints/4.arrow").unlink()
    assert shares(finished(world)) == shares(trained)


def test_missing_centroids_are_refused(tmp_path: Path, halfway: World) -> None:
    world = halfway.copied(tmp_path / "world")
    kept = world.kept("payco")
    (kept / "centres/2/1.arrow").unlink()
    refused(world, f"{kept}/centres/2/1.arrow is missing", f"or remove {kept}/checkpoints/2.arrow")


@pytest.mark.parametrize("damage", ["the last bit flipped", "gone"])
def test_damaged_operands_are_refused(tmp_path: Path, halfway: World, damage: str) -> None:
    world = halfway.copied(tmp_path / "world")
    file = world.kept("payco") / "operands/1.arrow"
    DAMAGES[damage](file)
    refused(world, str(file), "restore it from a backup, or start a new run id")


@pytest.mark.parametrize("left", [(0, 1), ()])
def test_checkpoints_missing_after_messages_were_dropped_are_refused(
    tmp_path: Path, iterated: World, left: tuple[int, ...]
) -> None:
    """What the others sent is gone: going on from an older checkpoint is not possible, nor is a new beginning."""
    world = iterated.copied(tmp_path / "world")
    for file in (world.kept("payco") / "checkpoints").glob("*.arrow"):
        if int(file.stem) not in left:
            file.unlink()
    newest = "of iteration 1" if left else "gone"
    refused(world, f"its newest checkpoint in {world.kept('payco')} is {newest}", "restore it from a backup")
