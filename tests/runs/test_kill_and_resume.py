"""`veilmeans train` under SIGKILL: whoever dies, and whenever, the shares are those of an undisturbed run."""

import random
import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from support.commands import Strike, assert_all_succeeded, at_rename
from support.run_results import file_contents, final_shares, opened_results
from support.worlds import BOTH, CLUSTERS, PLUS_PLUS, World, train_under_strikes, two_companies
from veilmeans.schemas.run_folder import CENTROIDS

pytestmark = pytest.mark.processes


@dataclass(frozen=True)
class Undisturbed:
    """A world before its run, after the last iteration and at the end, and what the run gave."""

    new: World
    iterated: World
    trained: World
    shares: dict[str, bytes]
    results: dict[str, Any]

    def check_equal(self, world: World) -> None:
        assert final_shares(world) == self.shares
        assert opened_results(world) == self.results


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Undisturbed]:
    """A run of each layout, made once; horizontally each column is a column shard."""
    root = tmp_path_factory.mktemp("worlds")

    @cache
    def run(layout: str) -> Undisturbed:
        beam = {} if layout == "vertical" else {"values_per_column_shard": CLUSTERS}
        init = {} if layout == "vertical" else PLUS_PLUS
        new = two_companies(root / layout, layout, beam=beam, init=init)
        iterated = new.copied(root / f"{layout}-iterated")
        iterated.train_until_killed(at_rename("finished.json"))
        trained = iterated.copied(root / f"{layout}-trained")
        assert_all_succeeded(trained.train_as_processes())
        return Undisturbed(new, iterated, trained, final_shares(trained), opened_results(trained))

    return run


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
            "beam": {"rounds": self.rounds},
            "kmeans": {"iterations_per_pipeline": self.iterations_per_pipeline},
        }

    def strikes(self, seed: int) -> list[Strike]:
        """Strikes that all happen: together they wait for no more changes than a run makes."""
        drawn = random.Random(seed)
        return [Strike(number=drawn.randint(1, self.changes // self.deaths)) for _ in range(self.deaths)]


CASES = {
    "one-call-gateway-vertical": Case("vertical", "gateway", "one_call", 1, 5, 400),
    "one-call-files-horizontal": Case("horizontal", "files", "one_call", 3, 5, 400),
    "stages-gateway-horizontal": Case("horizontal", "gateway", "stages", 3, 3, 450),
    "stages-files-vertical": Case("vertical", "files", "stages", 1, 3, 400),
}


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_either_party_killed_at_random_moments_gives_the_same_shares(
    tmp_path: Path, undisturbed: Callable[[str], Undisturbed], name: str
) -> None:
    """Each of them dies several times and is restarted, while the other waits or is dead itself."""
    case = CASES[name]
    expected = undisturbed(case.layout)
    world = expected.new.copied(tmp_path / "world", **case.fields())
    train_under_strikes(world, {party: case.strikes(seed) for seed, party in enumerate(BOTH)})
    expected.check_equal(world)


BEGIN = [
    at_rename("bound."),
    Strike("claims/", event="os.link"),
    at_rename("operands/", 2),
    at_rename(f"{CENTROIDS}/0/"),
    at_rename("checkpoints/0.arrow"),
    at_rename("checkpoints/2.arrow"),
]
MIDDLE = {
    "gateway": [
        at_rename("assignments/3/"),
        Strike("assignments/1", event="shutil.rmtree"),
        at_rename(f"{CENTROIDS}/4/"),
        at_rename("checkpoints/4.arrow"),
        at_rename("collected"),
    ],
    "files": [at_rename("collected"), Strike("outbox/", 5, "os.remove")],
}
END = [
    at_rename("finished.json"),
    at_rename("opened/"),
    at_rename("assignments.parquet"),
    at_rename("centroids.parquet"),
    at_rename("result.json"),
]


@pytest.mark.parametrize(("kind", "party"), [("gateway", "payco"), ("files", "shop")])
def test_a_party_killed_at_each_kind_of_file_resumes(
    tmp_path: Path, undisturbed: Callable[[str], Undisturbed], kind: str, party: str
) -> None:
    """The moments are listed in the order in which they come, from handshake to reveal. The other party lives."""
    expected = undisturbed("vertical")
    world = expected.new.copied(tmp_path / "world", exchange={"kind": kind})
    train_under_strikes(world, {party: [*BEGIN, *MIDDLE[kind], *END]})
    expected.check_equal(world)


def test_both_parties_killed_at_the_same_checkpoint_resume(
    tmp_path: Path, undisturbed: Callable[[str], Undisturbed]
) -> None:
    expected = undisturbed("horizontal")
    world = expected.new.copied(tmp_path / "world")
    strikes = [at_rename(f"{CENTROIDS}/2/", 2), at_rename("checkpoints/2.arrow")]
    train_under_strikes(world, dict.fromkeys(BOTH, strikes))
    expected.check_equal(world)


@pytest.mark.parametrize("path", ["opened/", "centroids.parquet", "result.json"])
def test_both_parties_killed_as_they_open_results_resume(
    tmp_path: Path, undisturbed: Callable[[str], Undisturbed], path: str
) -> None:
    expected = undisturbed("horizontal")
    world = expected.iterated.copied(tmp_path / "world")
    train_under_strikes(world, {name: [at_rename(path)] for name in BOTH})
    expected.check_equal(world)


@pytest.mark.parametrize(
    ("strike", "patience"),
    [
        (Strike("runs/test/farewell", event="open"), 3),
        (Strike("inbox/.dropped-", event="shutil.rmtree"), 60),
        (at_rename("farewell"), 60),
    ],
    ids=["before it is marked", "as messages are dropped", "as the other's comes"],
)
def test_a_party_killed_in_its_farewell_is_finished_when_it_restarts(
    tmp_path: Path, undisturbed: Callable[[str], Undisturbed], strike: Strike, patience: float
) -> None:
    """The other has received our farewell. Where it may be gone by then, we try to reach it only for a short time.

    If we die before we have acknowledged its farewell, it waits for that until its time is up.
    """
    expected = undisturbed("vertical")
    world = expected.iterated.copied(tmp_path / "world")
    shop = world.altered("shop", exchange={"timeout_s": 40}).start("shop")
    assert world.start("payco", strike).wait()[0] == -signal.SIGKILL
    again = world.altered("payco", exchange={"timeout_s": patience})
    assert_all_succeeded({"payco": again.start("payco").wait(), "shop": shop.wait()})
    expected.check_equal(world)
    before = file_contents(world["payco"].storage)
    assert_all_succeeded({"payco": again.start("payco").wait()})
    assert file_contents(world["payco"].storage) == before


@pytest.mark.parametrize("name", BOTH)
def test_a_finished_run_changes_nothing_when_it_is_restarted(
    undisturbed: Callable[[str], Undisturbed], name: str
) -> None:
    """The other party is not needed for it."""
    trained = undisturbed("vertical").trained
    before = file_contents(trained[name].storage)
    assert_all_succeeded({name: trained.start(name).wait()})
    assert file_contents(trained[name].storage) == before
