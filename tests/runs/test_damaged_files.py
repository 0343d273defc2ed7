"""Runs whose files were damaged between two starts: refused with the file's name, or resumed with the same shares."""

from collections.abc import Callable
from pathlib import Path

import pytest

from support.commands import assert_all_succeeded, at_rename
from support.run_results import error_sentences, file_contents, final_shares, opened_results
from support.worlds import BOTH, World, two_companies
from veilmeans.io.storage.checkpoints import assignments, centroids
from veilmeans.schemas.run_folder import OPERANDS

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def halfway(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Two iterations of four are done, and both parties have died. Column shards have three columns and one."""
    folder = tmp_path_factory.mktemp("halfway") / "world"
    return killed(two_companies(folder, "vertical", beam={"values_per_column_shard": 9}), "checkpoints/3.arrow")


@pytest.fixture(scope="module")
def iterated(halfway: World, tmp_path_factory: pytest.TempPathFactory) -> World:
    """All iterations are done, nothing is opened, and both parties have died."""
    return killed(halfway.copied(tmp_path_factory.mktemp("iterated") / "world"), "finished.json")


@pytest.fixture(scope="module")
def trained(iterated: World, tmp_path_factory: pytest.TempPathFactory) -> World:
    return finished(iterated.copied(tmp_path_factory.mktemp("trained") / "world"))


def killed(world: World, path: str) -> World:
    """Train until both parties are killed just before they write this file."""
    world.train_until_killed(at_rename(path))
    return world


def finished(world: World) -> World:
    assert_all_succeeded(world.train_as_processes())
    return world


def flip_last_bit(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def empty(file: Path) -> None:
    file.write_bytes(b"")


def assert_refused(world: World, *named: object) -> None:
    """Check that payco, started alone, ends with code 8, names these in one sentence, and changes no file."""
    storage = world["payco"].storage
    before = file_contents(storage)
    code, output = world.start("payco").wait()
    sentences = error_sentences(output)
    assert (code, len(sentences), "Traceback" in output) == (8, 1, False), output
    assert [name for name in named if str(name) not in sentences[0]] == [], sentences[0]
    after = file_contents(storage)
    assert {name: after.get(name) for name in before} == before


def test_a_run_resumes_without_its_damaged_newest_checkpoint(tmp_path: Path, iterated: World, trained: World) -> None:
    world = iterated.copied(tmp_path / "world")
    newest = world.run_folder("payco").checkpoint(4)
    flip_last_bit(newest)
    assert_refused(world, newest, "remove it")
    newest.unlink()
    assert final_shares(finished(world)) == final_shares(trained)
    assert opened_results(world) == opened_results(trained)


def test_a_run_resumes_in_the_middle_if_both_lack_the_newest_checkpoint(
    tmp_path: Path, halfway: World, trained: World
) -> None:
    world = halfway.copied(tmp_path / "world")
    for name in BOTH:
        world.run_folder(name).checkpoint(2).unlink()
    assert final_shares(finished(world)) == final_shares(trained)


@pytest.mark.parametrize(
    ("kind", "damage"), [(assignments(5), empty), (centroids(4), flip_last_bit)], ids=["assignments", "centroids"]
)
def test_damaged_shares_are_computed_again_if_their_checkpoint_is_removed(
    tmp_path: Path, iterated: World, trained: World, kind: str, damage: Callable[[Path], None]
) -> None:
    world = iterated.copied(tmp_path / "world")
    folder = world.run_folder("payco")
    damage(folder.shard(kind, 1))
    assert_refused(world, folder.shard(kind, 1), f"remove {folder.checkpoint(4)}")
    folder.checkpoint(4).unlink()
    assert final_shares(finished(world)) == final_shares(trained)


def test_missing_centroids_are_refused(tmp_path: Path, halfway: World) -> None:
    world = halfway.copied(tmp_path / "world")
    folder = world.run_folder("payco")
    folder.shard(centroids(2), 1).unlink()
    assert_refused(world, folder.shard(centroids(2), 1), f"remove {folder.checkpoint(2)}")


@pytest.mark.parametrize("damage", [flip_last_bit, Path.unlink], ids=["a bit flipped", "missing"])
def test_damaged_operands_are_refused(tmp_path: Path, halfway: World, damage: Callable[[Path], None]) -> None:
    world = halfway.copied(tmp_path / "world")
    file = world.run_folder("payco").shard(OPERANDS, 1)
    damage(file)
    assert_refused(world, file, "backup", "new run id")


@pytest.mark.parametrize("remaining", [(0, 1), ()], ids=["old ones remain", "none remains"])
def test_checkpoints_missing_after_messages_were_dropped_are_refused(
    tmp_path: Path, iterated: World, remaining: tuple[int, ...]
) -> None:
    """The peers' messages are gone: the run can neither resume from an older checkpoint nor begin anew."""
    world = iterated.copied(tmp_path / "world")
    folder = world.run_folder("payco")
    for file in folder.checkpoints.glob("*.arrow"):
        if int(file.stem) not in remaining:
            file.unlink()
    assert_refused(world, folder, "backup")
