"""`veilmeans train` under SIGKILL: whoever dies, and whenever, the shares are those of an undisturbed run."""

import random
import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from support.train_world import BOTH, CLUSTERS, ITERATIONS, Strike, World, contents, make_world, play, results, shares
from veilmeans.schemas.layout import VALUES_PER_COLUMN_SHARD


def named(what: str, number: int = 1) -> Strike:
    """As a file is about to get its name, and its part lies beside it."""
    return Strike(what, number, "os.rename")


@dataclass(frozen=True)
class Undisturbed:
    """A world before its run, after the last iteration and at the end, and what the run gave."""

    world: World
    iterated: World
    trained: World
    shares: dict[str, bytes]
    results: dict[str, Any]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Undisturbed]:
    """Made once for each layout; horizontally each column is a shard."""
    root = tmp_path_factory.mktemp("worlds")

    @cache
    def find(layout: str) -> Undisturbed:
        world = make_world(root / layout, layout, cells=VALUES_PER_COLUMN_SHARD if layout == "vertical" else CLUSTERS)
        iterated = world.copied(root / f"{layout}-iterated")
        stopped = [iterated.start(name, named("finished.json")) for name in BOTH]
        assert [each.wait()[0] for each in stopped] == [-signal.SIGKILL] * 2
        trained = iterated.copied(root / f"{layout}-trained")
        play(trained, {})
        return Undisturbed(world, iterated, trained, shares(trained), results(trained))

    return find


def check(expected: Undisturbed, world: World) -> None:
    assert shares(world) == expected.shares
    assert results(world) == expected.results


@dataclass(frozen=True)
class Case:
    """A kind of run, and how often each party dies in it within its first `changes` changes of files."""

    layout: str
    kind: str
    rounds: str
    iterations_per_pipeline: int
    deaths: int
    changes: int

    def fields(self) -> dict[str, Any]:
        return {
            "exchange": {"kind": self.kind},
            "engine": {"rounds": self.rounds},
            "kmeans": {"iterations_per_pipeline": self.iterations_per_pipeline},
        }

    def strikes(self, seed: int) -> list[Strike]:
        """All of them come, whatever a start does again: together they wait for no more changes than a run makes."""
        drawn = random.Random(seed)
        return [Strike(number=drawn.randint(1, self.changes // self.deaths)) for _ in range(self.deaths)]


CASES = {
    "whole-gateway-vertical": Case("vertical", "gateway", "whole", 1, 5, 400),
    "whole-files-horizontal": Case("horizontal", "files", "whole", 3, 5, 400),
    "stages-gateway-horizontal": Case("horizontal", "gateway", "stages", 3, 3, 450),
    "stages-files-vertical": Case("vertical", "files", "stages", 1, 3, 400),
}


@pytest.mark.parametrize("name", CASES)
def test_either_party_killed_at_random_moments_gives_the_same_shares(
    tmp_path: Path, undisturbed: Callable[[str], Undisturbed], name: str
) -> None:
    """Each of them dies several times and is started again, while the other waits or is dead itself."""
    case = CASES[name]
    expected = undisturbed(case.layout)
    world = expected.world.copied(tmp_path / "world", **case.fields())
    play(world, {party: case.strikes(seed) for seed, party in enumerate(BOTH)})
    check(expected, world)


BEGIN = [
    named("bound."),
    Strike("claims/", event="os.link"),
    named("operands/", 2),
    named("centres/0/"),
    named("checkpoints/0.arrow"),
    named("checkpoints/2.arrow"),
]
MIDDLE = {
    "gateway": [
        named("assignments/3/"),
        Strike("assignments/1", event="shutil.rmtree"),
        named("centres/4/"),
        named("checkpoints/4.arrow"),
        named("collected"),
    ],
    "files": [named("collected"), Strike("outbox/", 5, "os.remove")],
}
END = [
    named("finished.json"),
    named("opened/"),
    named("assignments.parquet"),
    named("centroids.parquet"),
    named("result.json"),
]


@pytest.mark.parametrize(("kind", "party"), [("gateway", "payco"), ("files", "shop")])
def test_a_party_killed_at_each_kind_of_file_from_handshake_to_reveal_goes_on(
    tmp_path: Path, undisturbed: Callable[[str], Undisturbed], kind: str, party: str
) -> None:
    """The moments stand in the order in which they come. The other party lives."""
    expected = undisturbed("vertical")
    world = expected.world.copied(tmp_path / "world", exchange={"kind": kind})
    play(world, {party: [*BEGIN, *MIDDLE[kind], *END]})
    check(expected, world)


def test_both_parties_killed_at_the_same_checkpoint_go_on(
    tmp_path: Path, undisturbed: Callable[[str], Undisturbed]
) -> None:
    expected = undisturbed("horizontal")
    world = expected.world.copied(tmp_path / "world")
    play(world, {name: [named("centres/2/", 2), named("checkpoints/2.arrow")] for name in BOTH})
    check(expected, world)


@pytest.mark.parametrize("what", ["opened/", "centroids.parquet", "result.json"])
def test_both_parties_killed_as_they_open_results_go_on(
    tmp_path: Path, undisturbed: Callable[[str], Undisturbed], what: str
) -> None:
    expected = undisturbed("horizontal")
    world = expected.iterated.copied(tmp_path / "world")
    play(world, {name: [named(what)] for name in BOTH})
    check(expected, world)


@pytest.mark.parametrize(
    "strike",
    [
        Strike("runs/test/farewell", event="open"),
        Strike(f"inbox/test/{ITERATIONS}", event="shutil.rmtree"),
        named("farewell"),
    ],
    ids=["before it is marked", "as messages are dropped", "as the other's comes"],
)
def test_a_party_killed_in_its_farewell_is_finished_when_it_starts_again(
    tmp_path: Path, undisturbed: Callable[[str], Undisturbed], strike: Strike
) -> None:
    """The other may be gone by then: it has heard us, and has all it needs."""
    expected = undisturbed("vertical")
    world = expected.iterated.copied(tmp_path / "world", exchange={"timeout_s": 8})
    play(world, {"payco": [strike]})
    check(expected, world)
    assert "run test is finished already" in world.start("payco").wait()[1]


def test_a_finished_run_says_so_and_changes_nothing(undisturbed: Callable[[str], Undisturbed]) -> None:
    expected = undisturbed("vertical")
    for name in BOTH:
        before = contents(expected.trained.configs[name].storage)
        code, output = expected.trained.start(name).wait()
        assert code == 0
        assert "run test is finished already" in output
        assert contents(expected.trained.configs[name].storage) == before
