"""One run, however it is executed: the final shares are the same bit for bit.

Every variant begins with a copy of one world (keys, seeds, triples, data). Nothing that a party may choose by itself,
not even the engine, changes a single share.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.beam_runners import ENGINES, Engine, read_all, running
from support.in_process_run import (
    Configs,
    blobs,
    changed,
    checkpoint,
    deal_all,
    kept_of,
    labels_of,
    make_world,
    positions,
    tables,
    train,
)
from support.parties import NAMES, in_parallel, write_config
from veilmeans.schemas import layout
from veilmeans.schemas.config import JobConfig

A, B = NAMES[:2]
ITERATIONS = 2


def make(folder: Path, rows: int, shard: int, iterations: int, vertical: bool = True, **fields: Any) -> Configs:
    """Two parties with their own columns, or their own rows."""
    names = [f"c{i}" for i in range(4)]
    cut = 1 if vertical else rows // 3
    parts = tables(blobs(rows, 4), names, [cut], axis=1 if vertical else 0)
    job = {
        "layout": "vertical" if vertical else "horizontal",
        "clusters": 3,
        "max_iter": iterations,
        "normalise": {"aggregate": not vertical},
        "reveal": {"assignments": [A, B], "centroids": [B], "inertia": [A]},
        **fields,
    }
    return make_world(folder, parts, job, engine={"rows_per_shard": shard, "rounds": "stages"})


def copied(configs: Configs, source: Path, target: Path) -> Configs:
    """The same world at another place, as if nothing had happened in it."""
    shutil.copytree(source, target)
    return {
        name: JobConfig.model_validate_json(config.model_dump_json().replace(str(source), str(target)))
        for name, config in configs.items()
    }


def run_by(config: JobConfig, **engine: Any) -> JobConfig:
    """The same party with other settings of its engine."""
    return config.model_copy(update={"engine": config.engine.model_copy(update=engine)})


def check_same(one: Configs, other: Configs, iterations: int) -> None:
    """Everything that both parties keep at the end, and what was opened of it."""
    for name in (A, B):
        assert kept_of(one[name]).newest() == kept_of(other[name]).newest() == iterations
        for done in range(iterations + 1):
            first, second = (checkpoint(world[name], done) for world in (one, other))
            assert (
                first.keys()
                == second.keys()
                >= {"mu", "u", "stop", "x2", "inertia"} - ({"inertia"} if not done else set())
            )
            for what, array in first.items():
                np.testing.assert_array_equal(array, second[what], strict=True)
        shares = [positions(world[name]) for world in (one, other)]
        assert len(shares[0]) == len(shares[1]) > 3
        for here, there in zip(*shares, strict=True):
            np.testing.assert_array_equal(here, there, strict=True)
        opened = [(world[name].run_folder / "assignments.parquet").read_bytes() for world in (one, other)]
        assert opened[0] == opened[1]


# On DirectRunner, quickly.
@dataclass(frozen=True)
class Variant:
    """Other settings of each party."""

    engine: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    iterations_per_pipeline: Mapping[str, int] = field(default_factory=dict)

    def apply(self, configs: Configs) -> Configs:
        return {
            name: changed(
                run_by(config, **self.engine.get(name, {})),
                iterations_per_pipeline=self.iterations_per_pipeline.get(name, 1),
            )
            for name, config in configs.items()
        }


VALUES = {"rounds": "stages", "state": "value"}
SCRATCH = {"rounds": "stages", "state": "scratch", "workers": 2}
VARIANTS = {
    "pipelines of stages": Variant({A: VALUES, B: SCRATCH}),
    "one pipeline of stages": Variant({A: SCRATCH, B: VALUES}, {A: ITERATIONS, B: ITERATIONS}),
    "whole and in stages": Variant({B: {"rounds": "stages", "workers": 2}}, {A: ITERATIONS}),
    "whole, more in a pipeline than there are, and one": Variant({}, {A: ITERATIONS + 1}),
}
"""What a party chooses for itself is no matter of the other's: a run tries something else at each of them."""


@dataclass(frozen=True)
class World:
    """A world in which nothing has happened yet, and a copy of it after a run by whole iterations."""

    folder: Path
    configs: Configs
    run: Configs

    @classmethod
    def make(cls, folder: Path, vertical: bool) -> "World":
        configs = make(folder / "new", 250, 64, ITERATIONS, vertical)
        configs = {name: run_by(config, rounds="whole") for name, config in configs.items()}
        run = copied(configs, folder / "new", folder / "run")
        train(run)
        return cls(folder / "new", configs, run)

    def another(self, folder: Path) -> Configs:
        return copied(self.configs, self.folder, folder)


@pytest.fixture(scope="module")
def vertical(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World.make(tmp_path_factory.mktemp("vertical"), True)


@pytest.fixture(scope="module")
def horizontal(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World.make(tmp_path_factory.mktemp("horizontal"), False)


@pytest.mark.parametrize(
    "name", ["one pipeline of stages", "whole and in stages", "whole, more in a pipeline than there are, and one"]
)
def test_shares_do_not_depend_on_how_a_party_runs(vertical: World, name: str, tmp_path: Path) -> None:
    other = VARIANTS[name].apply(vertical.another(tmp_path / "other"))
    train(other)
    check_same(vertical.run, other, ITERATIONS)


@pytest.mark.parametrize("name", ["pipelines of stages", "whole and in stages"])
def test_nor_where_each_has_its_own_rows(horizontal: World, name: str, tmp_path: Path) -> None:
    other = VARIANTS[name].apply(horizontal.another(tmp_path / "other"))
    train(other)
    check_same(horizontal.run, other, ITERATIONS)


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three columns of three centroids are a shard, and the fourth is another."""
    monkeypatch.setattr(layout, "VALUES_PER_COLUMN_SHARD", 9)


@pytest.mark.usefixtures("narrow")
def test_nor_where_columns_are_in_several_shards(tmp_path: Path) -> None:
    world = World.make(tmp_path, True)
    assert len(list((world.run[A].run_folder / f"centres/{ITERATIONS}").iterdir())) == 2
    other = Variant({B: {"rounds": "stages", "workers": 2}}).apply(world.another(tmp_path / "other"))
    train(other)
    check_same(world.run, other, ITERATIONS)


@pytest.mark.usefixtures("narrow")
def test_nothing_flows_over_column_shards_after_the_stop_bit(tmp_path: Path) -> None:
    """Two iterations are in one pipeline, and the first one stops; one party runs whole iterations, one stages."""
    configs = make(tmp_path, 20, 20, ITERATIONS, tol=1e6)
    train(Variant({A: {"rounds": "whole"}}, {A: ITERATIONS, B: ITERATIONS}).apply(configs))
    for config in configs.values():
        assert kept_of(config).newest() == 1
        assert not (config.run_folder / "centres/2").exists()


def test_another_dealer_gives_other_shares_of_the_same_result(vertical: World, tmp_path: Path) -> None:
    """The comparison can fail."""
    other = vertical.another(tmp_path / "other")
    for config in other.values():
        shutil.rmtree(config.store_folder)
    deal_all(other, secret=b"another dealer")
    train(other)
    with pytest.raises(AssertionError):
        check_same(vertical.run, other, ITERATIONS)
    for world in (vertical.run, other):
        np.testing.assert_array_equal(np.concatenate(labels_of(world)), np.concatenate(labels_of(vertical.run)))


# On Flink and Prism.
ROWS, SHARD = 10_000, 2_048


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Engine]]:
    """An engine for each of two parties."""
    folder = tmp_path_factory.mktemp("engine")
    with ExitStack() as stack:
        yield [stack.enter_context(running(request.param, folder / str(i))) for i in range(2)]


@pytest.mark.parametrize("vertical", [True, False], ids=["vertical", "horizontal"])
def test_a_run_on_an_engine_gives_the_shares_of_a_direct_one(
    engine: list[Engine], vertical: bool, tmp_path: Path
) -> None:
    configs = make(tmp_path / "new", ROWS, SHARD, ITERATIONS, vertical)
    direct, other = (copied(configs, tmp_path / "new", tmp_path / name) for name in ("direct", "other"))
    run_all(direct, [[], []])
    said = run_all(other, [[*engine[i].flags, f"--job_name=train{i}"] for i in range(2)])
    assert all(engine[i].ran(f"train{i}", said[i]) for i in range(2))
    check_same(direct, other, ITERATIONS)


def test_one_party_on_an_engine_and_one_on_direct_runner(engine: list[Engine], tmp_path: Path) -> None:
    """Two iterations in one pipeline there, one in each here."""
    configs = make(tmp_path / "new", ROWS, SHARD, ITERATIONS)
    direct, other = (copied(configs, tmp_path / "new", tmp_path / name) for name in ("direct", "other"))
    run_all(direct, [[], []])
    other[A] = changed(other[A], iterations_per_pipeline=ITERATIONS)
    said = run_all(other, [[*engine[0].flags, "--job_name=mixed"], []])
    assert engine[0].ran("mixed", said[0])
    check_same(direct, other, ITERATIONS)


def run_all(configs: Configs, flags: list[list[str]]) -> list[str]:
    """`veilmeans train` as processes with these flags; what they printed."""
    processes = []
    for config, own in zip(configs.values(), flags, strict=True):
        file = write_config(config, config.storage.parent / "config.yaml")
        command = [sys.executable, "-m", "veilmeans", "-v", "train", "--config", str(file), *own]
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        processes.append(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
        )
    said = in_parallel([partial(read_all, process) for process in processes])
    assert [process.returncode for process in processes] == [0, 0], "\n".join(text[-3000:] for text in said)
    return said
