"""One run, however it is executed: the final shares are the same bit for bit.

Every variant begins with a copy of one world (keys, seeds, triples, data). Nothing that a party may choose by itself,
not even the Beam runner, changes a single share.
"""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.beam_runners import RUNNERS, BeamRunner, run_with_flags, started_runner
from support.parties import NAMES
from support.run_results import assignment_shares, checkpoints_of, file_contents, opened_labels, read_checkpoint
from support.worlds import World, blobs, deal_directly, draw_secrets, make_world, make_world_without_stores, tables
from veilmeans.io.storage.checkpoints import centroids

A, B = NAMES[:2]
ITERATIONS = STARTS = 2
THREE_COLUMNS = 9
"""Values of a column shard of three columns of three centroids; the fourth column is another shard."""
KEPT, LAST = ({"mu", "stop", "x2"}, {"mu", "stop", "x2", "n"}), {"inertia", "finished"}
"""Arrays of the first checkpoint and of the others, and what the last one has beside."""


def new_world(
    folder: Path,
    rows: int,
    rows_per_shard: int,
    vertical: bool = True,
    beam: Mapping[str, Any] | None = None,
    dealt: bool = True,
    **job: Any,
) -> World:
    """Two parties with their own columns, or their own rows; `dealt`: with their triple stores."""
    cut = 1 if vertical else rows // 3
    data = tables(blobs(rows, 4), [f"c{i}" for i in range(4)], [cut], axis=1 if vertical else 0)
    agreed = {
        "layout": "vertical" if vertical else "horizontal",
        "clusters": 3,
        "max_iter": ITERATIONS,
        "normalise": {"aggregate": not vertical},
        "outliers": {"fraction": 0.1},
        "reveal": {"assignments": [A, B], "centroids": [B], "inertia": [A], "scores": [A], "outliers": [A, B]},
        **job,
    }
    make = make_world if dealt else make_world_without_stores
    return make(folder, data, agreed, beam={"rows_per_shard": rows_per_shard, **(beam or {})}, audit={"keep": True})


def check_same(one: World, other: World) -> None:
    """Compare everything that both parties keep at the end, and what was opened of it."""
    for name in (A, B):
        assert checkpoints_of(one[name]).newest() == checkpoints_of(other[name]).newest() == ITERATIONS
        for iterations in range(ITERATIONS + 1):
            first, second = (read_checkpoint(world[name], iterations) for world in (one, other))
            last = LAST | ({"chosen.n"} if one[name].required_kmeans.starts > 1 else set())
            kept = KEPT[min(iterations, 1)] | (last if iterations == ITERATIONS else set())
            assert first.keys() == second.keys() == kept
            for what, array in first.items():
                np.testing.assert_array_equal(array, second[what], strict=True)
        shares = [assignment_shares(world[name]) for world in (one, other)]
        assert len(shares[0]) == len(shares[1]) > 3
        for here, there in zip(*shares, strict=True):
            np.testing.assert_array_equal(here, there, strict=True)
        for what in ("assignments", "outliers"):
            opened = [getattr(world.run_folder(name), what).read_bytes() for world in (one, other)]
            assert opened[0] == opened[1]


# On DirectRunner, in this process.
@dataclass(frozen=True)
class Variant:
    """Other settings of each party."""

    beam: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    iterations_per_pipeline: Mapping[str, int] = field(default_factory=dict)

    def apply(self, world: World) -> World:
        for name in (A, B):
            iterations = self.iterations_per_pipeline.get(name, 1)
            world = world.altered(name, beam=self.beam.get(name, {}), kmeans={"iterations_per_pipeline": iterations})
        return world


IN_VALUES = {"rounds": "stages", "state": "value"}
IN_SCRATCH = {"rounds": "stages", "state": "scratch", "workers": 2}
VARIANTS = {
    "pipelines of stages": Variant({A: IN_VALUES, B: IN_SCRATCH}),
    "one pipeline of stages": Variant({A: IN_SCRATCH, B: IN_VALUES}, {A: ITERATIONS, B: ITERATIONS}),
    "one call and stages": Variant({B: {"rounds": "stages", "workers": 2}}, {A: ITERATIONS}),
    "one call, more iterations in a pipeline than there are, and one": Variant({}, {A: ITERATIONS + 1}),
}
"""A party's choices do not concern the other: a run tries something else at each of them."""


@dataclass(frozen=True)
class Reference:
    """A world before its run, and a copy of it after a run of one call for each iteration."""

    new: World
    trained: World

    @classmethod
    def make(cls, folder: Path, vertical: bool, values_per_column_shard: int = 1 << 18) -> "Reference":
        beam = {"rounds": "one_call", "values_per_column_shard": values_per_column_shard}
        plain = vertical and values_per_column_shard > STARTS * THREE_COLUMNS
        job = {} if plain else {"init": {"method": "k-means++"}, "starts": STARTS}
        new = new_world(folder / "new", 250, 64, vertical, beam, **job)
        trained = new.copied(folder / "trained")
        trained.train()
        return cls(new, trained)

    def check(self, variant: Variant, folder: Path) -> None:
        other = variant.apply(self.new.copied(folder))
        other.train()
        check_same(self.trained, other)


@pytest.fixture(scope="module")
def vertical(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return Reference.make(tmp_path_factory.mktemp("vertical"), True)


@pytest.fixture(scope="module")
def horizontal(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return Reference.make(tmp_path_factory.mktemp("horizontal"), False)


@pytest.mark.parametrize(
    "name",
    [pytest.param("one pipeline of stages", marks=pytest.mark.long), "one call and stages", list(VARIANTS)[-1]],
)
def test_shares_do_not_depend_on_how_a_party_runs(vertical: Reference, name: str, tmp_path: Path) -> None:
    vertical.check(VARIANTS[name], tmp_path / "other")


@pytest.mark.parametrize("name", [pytest.param("pipelines of stages", marks=pytest.mark.long), "one call and stages"])
def test_shares_of_a_horizontal_run_do_not_either(horizontal: Reference, name: str, tmp_path: Path) -> None:
    horizontal.check(VARIANTS[name], tmp_path / "other")


@pytest.mark.long
def test_shares_over_several_column_shards_do_not_either(tmp_path: Path) -> None:
    reference = Reference.make(tmp_path, True, STARTS * THREE_COLUMNS)
    folder = reference.trained.run_folder(A)
    assert len(list(folder.shares(centroids(ITERATIONS)).iterdir())) == 2
    reference.check(Variant({B: {"rounds": "stages", "workers": 2}}), tmp_path / "other")


def test_no_column_shard_is_sent_after_the_stop_bit(tmp_path: Path) -> None:
    """Two iterations are in one pipeline, and the first one stops; one party runs in one call, the other in stages."""
    world = new_world(tmp_path, 20, 20, beam={"values_per_column_shard": THREE_COLUMNS}, tol=1e6)
    variant = Variant({A: {"rounds": "one_call"}, B: {"rounds": "stages"}}, {A: ITERATIONS, B: ITERATIONS})
    variant.apply(world).train()
    for config in world.parties.values():
        assert checkpoints_of(config).newest() == 1
        assert not config.run_folder.shares(centroids(2)).exists()


def test_another_dealer_gives_other_shares_of_the_same_result(vertical: Reference, tmp_path: Path) -> None:
    """The comparison can fail."""
    other = vertical.new.copied(tmp_path / "other")
    for config in other.parties.values():
        shutil.rmtree(config.store_folder)
    deal_directly(other.parties, secret=b"another dealer")
    other.train()
    with pytest.raises(AssertionError):
        check_same(vertical.trained, other)
    labels = [np.concatenate(opened_labels(world.parties)) for world in (vertical.trained, other)]
    np.testing.assert_array_equal(*labels)


# On Flink and Prism.
ROWS, ROWS_PER_SHARD = 10_000, 2_048


@pytest.fixture(scope="module", params=RUNNERS)
def runner(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[BeamRunner]]:
    """A Beam runner for each of two parties."""
    folder = tmp_path_factory.mktemp("runner")
    with ExitStack() as stack:
        yield [stack.enter_context(started_runner(request.param, folder / str(i))) for i in range(2)]


@pytest.mark.parametrize("vertical", [True, False], ids=["vertical", "horizontal"])
def test_another_runner_gives_the_shares_of_direct_runner(
    runner: list[BeamRunner], vertical: bool, tmp_path: Path
) -> None:
    new = new_world(tmp_path / "new", ROWS, ROWS_PER_SHARD, vertical, {"rounds": "stages"})
    direct, other = (new.copied(tmp_path / name) for name in ("direct", "other"))
    train_with_flags(direct, [[], []])
    outputs = train_with_flags(other, [[*runner[i].flags, f"--job_name=train{i}"] for i in range(2)])
    assert all(runner[i].ran(f"train{i}", outputs[i]) for i in range(2))
    check_same(direct, other)


def test_one_party_on_another_runner_and_one_on_direct_runner(runner: list[BeamRunner], tmp_path: Path) -> None:
    """Two iterations in one pipeline there, one in each here."""
    new = new_world(tmp_path / "new", ROWS, ROWS_PER_SHARD, beam={"rounds": "stages"})
    direct, other = (new.copied(tmp_path / name) for name in ("direct", "other"))
    train_with_flags(direct, [[], []])
    other = other.altered(A, kmeans={"iterations_per_pipeline": ITERATIONS})
    outputs = train_with_flags(other, [[*runner[0].flags, "--job_name=mixed"], []])
    assert runner[0].ran("mixed", outputs[0])
    check_same(direct, other)


def test_a_store_that_the_parties_make_on_another_runner(runner: list[BeamRunner], tmp_path: Path) -> None:
    """From the same secrets it is the store of DirectRunner, byte for byte."""
    new = new_world(tmp_path / "new", 2_000, 512, beam={"rounds": "stages"}, dealt=False)
    for config in new.parties.values():
        draw_secrets(config)
    direct, other = (new.copied(tmp_path / name) for name in ("direct", "other"))
    run_with_flags(direct, [[], []], "offline")
    outputs = run_with_flags(other, [[*runner[i].flags, f"--job_name=offline{i}"] for i in range(2)], "offline")
    assert all(runner[i].ran(f"offline{i}", outputs[i]) for i in range(2))
    for name in (A, B):
        one, same = (file_contents(world[name].store_folder.path) for world in (direct, other))
        assert len(one) > 4 * ITERATIONS
        assert one == same


def train_with_flags(world: World, flags: list[list[str]]) -> list[str]:
    """Run `veilmeans train` as processes with these flags; return their outputs."""
    return run_with_flags(world, flags, "train")
