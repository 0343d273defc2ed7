"""`veilmeans train` under SIGKILL: whoever dies, and whenever, the shares in the end are those of an undisturbed run."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from train_parties import BOTH, ITERATIONS, Strike, World, contents, make_world, play, results, shares

SHORT = 4
"""Iterations of a run whose rounds are Beam stages."""


@dataclass(frozen=True)
class Undisturbed:
    """A world before its run, and what its run gives."""

    world: World
    shares: dict[str, bytes]
    results: dict[str, Any]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], Undisturbed]:
    """Made once for each layout and number of iterations."""
    root = tmp_path_factory.mktemp("worlds")
    made = cache(lambda layout: make_world(root / layout, layout))

    @cache
    def find(layout: str, iterations: int) -> Undisturbed:
        world = made(layout).altered(kmeans={"max_iter": iterations})
        trained = world.copied(root / f"{layout}-{iterations}")
        ended = trained.train()
        assert {code for code, _ in ended.values()} == {0}, ended
        return Undisturbed(world, shares(trained), results(trained))

    return find


def check(expected: Undisturbed, world: World) -> None:
    assert shares(world) == expected.shares
    assert results(world) == expected.results


def random_strikes(seed: int, count: int, changes: int) -> list[Strike]:
    """So many strikes that all of them come before the `changes`-th change of a file, whatever is done twice."""
    drawn = random.Random(seed)
    return [Strike(number=drawn.randint(1, 2 * changes // (2 * count))) for _ in range(count)]


@dataclass(frozen=True)
class Case:
    layout: str
    kind: str
    rounds: str
    iterations_per_pipeline: int
    iterations: int
    changes: int
    """Fewer than either party makes in an undisturbed run."""

    def fields(self) -> dict[str, Any]:
        return {
            "exchange": {"kind": self.kind},
            "engine": {"rounds": self.rounds},
            "kmeans": {"iterations_per_pipeline": self.iterations_per_pipeline},
        }


CASES = {
    "whole-gateway-vertical": Case("vertical", "gateway", "whole", 1, ITERATIONS, 1200),
    "whole-files-horizontal": Case("horizontal", "files", "whole", 3, ITERATIONS, 900),
    "stages-gateway-horizontal": Case("horizontal", "gateway", "stages", 3, SHORT, 450),
    "stages-files-vertical": Case("vertical", "files", "stages", 1, SHORT, 400),
}


@pytest.mark.parametrize("name", CASES)
def test_either_party_killed_at_ten_random_moments_gives_the_same_shares(
    tmp_path: Path, undisturbed: Callable[[str, int], Undisturbed], name: str
) -> None:
    """Each of them dies five times and is started again, while the other waits or is dead itself."""
    case = CASES[name]
    expected = undisturbed(case.layout, case.iterations)
    world = expected.world.copied(tmp_path / "world", **case.fields())
    play(world, {party: random_strikes(seed, 5, case.changes) for seed, party in enumerate(BOTH)})
    check(expected, world)


def files(text: str, number: int = 1) -> Strike:
    return Strike(text, number, "os.rename")


MOMENTS = [
    files("bound."),
    Strike("claims/", event="os.link"),
    files("operands/", 2),
    files("checkpoints/0.arrow"),
    files("checkpoints/2.arrow"),
    files("assignments/3/"),
    files("collected"),
    Strike("", event="shutil.rmtree"),
    files(f"checkpoints/{SHORT}.arrow"),
    files("finished.json"),
    files("opened/"),
    files("assignments.parquet"),
    files("centroids.parquet"),
    files("result.json"),
]
"""In the order in which they come: as a file is about to get its name, with the part beside it."""


@pytest.mark.parametrize("kind", ["gateway", "files"])
def test_a_party_killed_as_each_kind_of_file_gets_its_name_goes_on(
    tmp_path: Path, undisturbed: Callable[[str, int], Undisturbed], kind: str
) -> None:
    """One after the other, from the handshake to the reveal; the other party lives."""
    expected = undisturbed("vertical", SHORT)
    world = expected.world.copied(tmp_path / "world", exchange={"kind": kind})
    play(world, {"shop" if kind == "files" else "payco": MOMENTS})
    check(expected, world)


AFTER = {
    "a checkpoint, before anybody knows of it": [files("assignments/2/"), Strike("checkpoints/2.arrow", 1)],
}


@pytest.mark.parametrize("what", ["checkpoints/2.arrow", "checkpoints/3.arrow", f"checkpoints/{SHORT}.arrow"])
def test_both_parties_killed_at_the_same_checkpoint_go_on(
    tmp_path: Path, undisturbed: Callable[[str, int], Undisturbed], what: str
) -> None:
    expected = undisturbed("horizontal", SHORT)
    world = expected.world.copied(tmp_path / "world")
    play(world, {name: [files(what)] for name in BOTH})
    check(expected, world)


def test_a_party_killed_after_its_farewell_is_finished_when_it_starts_again(
    tmp_path: Path, undisturbed: Callable[[str, int], Undisturbed]
) -> None:
    """It dies as it drops the run's messages. The other is gone by then: it has all it needs."""
    expected = undisturbed("vertical", SHORT)
    world = expected.world.copied(tmp_path / "world", exchange={"timeout_s": 10})
    play(world, {"payco": [Strike(f"inbox/test/{SHORT}", event="shutil.rmtree")]})
    check(expected, world)


def test_a_finished_run_says_so_and_changes_nothing(
    tmp_path: Path, undisturbed: Callable[[str, int], Undisturbed]
) -> None:
    expected = undisturbed("horizontal", SHORT)
    world = expected.world.copied(tmp_path / "world")
    world.train()
    for name in BOTH:
        before = contents(world.configs[name].storage)
        code, output = world.start(name).wait()
        assert code == 0
        assert "run test is finished already" in output
        assert contents(world.configs[name].storage) == before
    check(expected, world)
