"""Isolated workers while their token is lost, their place is full, slow or away, and their gateway restarts.

Each ends with one sentence and a rerun, or by itself; always with the shares and results of an undisturbed run.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from support.commands import CommandProcess, Ended
from support.fault_injection import wait_for
from support.faulty_bucket import FaultyBucket, faulty_bucket
from support.isolated_workers import ISOLATED, isolated_workers
from support.parties import listens
from support.run_results import error_sentences
from support.shared_places import A, B, assert_same_results, on_workers, shared_world, token_of, vertical_world
from support.worlds import World, deal_stores
from veilmeans.io.storage.run_token import revoke_tokens

pytestmark = [ISOLATED, pytest.mark.workers]

MIDDLE = "/assignments/1/"
"""In the names of objects that workers write in the first iteration of two."""


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A world with triple stores; a pipeline is one iteration."""
    folder = tmp_path_factory.mktemp("new") / "world"
    world = vertical_world(folder, products="beaver", iterations_per_pipeline=1)
    deal_stores(world)
    return world


@pytest.fixture(scope="module")
def undisturbed(new: World, tmp_path_factory: pytest.TempPathFactory) -> World:
    """A copy that has trained on one host."""
    world = new.copied(tmp_path_factory.mktemp("undisturbed") / "world")
    world.train()
    return world


@contextmanager
def isolated(new: World, folder: Path, token: Path | None = None) -> Iterator[tuple[World, FaultyBucket]]:
    """A copy whose workers of A see a bucket and their token, which is in a file if one is named."""
    with ExitStack() as stack:
        bucket = stack.enter_context(faulty_bucket())
        world = stack.enter_context(shared_world(new, folder, bucket))
        if token is not None:
            token.write_text(token_of(world[A]))
        shown = token or token_of(world[A])
        flags = stack.enter_context(isolated_workers(world.folder, shown, folder / "workers.log"))
        yield on_workers(world, flags), bucket


def assert_failed(ended: Ended, code: int, *said: str) -> None:
    """Check that a command ended with one sentence."""
    assert ended[0] == code, ended
    (sentence,) = error_sentences(ended[1])
    assert [part for part in said if part not in sentence] == []
    assert "Traceback" not in ended[1]


def finish(world: World, undisturbed: World, us: CommandProcess, peer: CommandProcess) -> None:
    """Wait for the end of a training, which must be that of an undisturbed run."""
    for process in (us, peer):
        ended = process.wait()
        assert ended[0] == 0, ended
    assert_same_results(undisturbed, world)


# by itself
def slow(bucket: FaultyBucket) -> None:
    bucket.delay = 0.2


def away(bucket: FaultyBucket) -> None:
    bucket.when_written(MIDDLE, lambda: bucket.go_away(30))


@pytest.mark.parametrize("disturb", [slow, away])
def test_a_place_that_is_slow_or_away_for_half_a_minute_gives_the_same_bytes(
    disturb: Callable[[FaultyBucket], None], new: World, undisturbed: World, tmp_path: Path
) -> None:
    with isolated(new, tmp_path) as (world, bucket):
        disturb(bucket)
        us, peer = world.start(A), world.start(B)
        finish(world, undisturbed, us, peer)
        assert disturb is slow or bucket.absences == 1


def test_a_gateway_that_is_killed_and_restarted_in_the_middle_gives_the_same_bytes(
    new: World, undisturbed: World, tmp_path: Path
) -> None:
    with isolated(new, tmp_path) as (world, bucket):
        world = world.altered(A, gateway="separate")
        gateways = [start_gateway(world)]

        def restart() -> None:
            gateways[-1].kill()
            gateways.append(start_gateway(world))

        bucket.when_written(MIDDLE, restart)
        try:
            us, peer = world.start(A), world.start(B)
            finish(world, undisturbed, us, peer)
            assert len(gateways) == 2
        finally:
            gateways[-1].kill()


def start_gateway(world: World) -> CommandProcess:
    """Start the gateway of A as a process of its own."""
    gateway = world.start(A, command="gateway")
    port = int((world[A].listen or "").rpartition(":")[2])
    wait_for(lambda: listens(port))
    return gateway


# with one sentence, and a rerun; the peer waits meanwhile
def test_a_full_place_is_one_sentence_and_a_rerun_gives_the_same_bytes(
    new: World, undisturbed: World, tmp_path: Path
) -> None:
    with isolated(new, tmp_path) as (world, bucket):
        bucket.when_written(MIDDLE, bucket.fill)
        us, peer = world.start(A), world.start(B)
        assert_failed(us.wait(), 8, "the shared place s3://bucket/payco is full", "nothing is lost")
        bucket.full = False
        finish(world, undisturbed, world.start(A), peer)


def test_a_place_that_stays_away_is_one_sentence_and_a_rerun_gives_the_same_bytes(
    new: World, undisturbed: World, tmp_path: Path
) -> None:
    with isolated(new, tmp_path) as (world, bucket):
        bucket.when_written(MIDDLE, bucket.leave)
        hasty, peer = world.altered(A, exchange={"timeout_s": 20}), world.start(B)
        assert_failed(hasty.start(A).wait(), 8, "s3://bucket/payco has not answered for 20 s", "nothing is lost")
        bucket.come_back()
        finish(world, undisturbed, world.start(A), peer)


def test_workers_that_lose_their_token_in_the_middle_say_so_and_a_rerun_gives_the_same_bytes(
    new: World, undisturbed: World, tmp_path: Path
) -> None:
    """The workers of the next iteration are new processes, which find no token."""
    token = tmp_path / "run.token"
    with isolated(new, tmp_path, token) as (world, bucket):
        bucket.when_written(MIDDLE, token.unlink)
        us, peer = world.start(A), world.start(B)
        assert_failed(us.wait(), 2, "has no token of run 'test'", "`veilmeans config token` makes it")
        token.write_text(token_of(world[A]))
        finish(world, undisturbed, world.start(A), peer)


def test_a_token_that_is_revoked_in_the_middle_ends_the_run_and_a_new_one_gives_the_same_bytes(
    new: World, undisturbed: World, tmp_path: Path
) -> None:
    token = tmp_path / "run.token"
    with isolated(new, tmp_path, token) as (world, bucket):
        bucket.when_written(MIDDLE, lambda: revoke_tokens(world.run_folder(A)))
        us, peer = world.start(A), world.start(B)
        assert_failed(us.wait(), 2, "the token of this worker was revoked", "`veilmeans config token`")
        token.write_text(token_of(world[A]))
        finish(world, undisturbed, world.start(A), peer)
