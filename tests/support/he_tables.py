"""Tables for runs of the engine he."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from support import train_world as train_parties
from support.in_process_run import keep_messages, received, together
from support.parties import make_configs
from support.train_world import BOTH, DEALER, World, changed_config, make_world, results, shares
from veilmeans.pipelines.offline import run_offline
from veilmeans.pipelines.train import run_train
from veilmeans.schemas import layout as layouts
from veilmeans.schemas.message import MessageKey

ROWS, WIDTHS, SHARD, CLUSTERS, ITERATIONS = 42, {"payco": 5, "shop": 3}, 20, 3, 2
CELLS = 2 * CLUSTERS
"""Two columns make a shard: the third has payco's last column and shop's first."""
REVEAL = {"assignments": BOTH, "centroids": BOTH}


def matrix() -> np.ndarray[Any, np.dtype[np.float64]]:
    """Mostly zeros, a row and a column without a value, and clusters that can be told apart."""
    rng = np.random.default_rng(3)
    centres = rng.uniform(0, 4, (CLUSTERS, 8)) * (rng.random((CLUSTERS, 8)) < 0.5)
    rows = centres[rng.integers(0, CLUSTERS, ROWS)] * rng.uniform(0.9, 1.1, (ROWS, 8))
    rows[5], rows[:, 2] = 0, 0
    return rows


def by_columns(folder: Path) -> World:
    """Each party's columns in an .npz file."""
    kmeans: dict[str, Any] = {"layout": "vertical", "rows": ROWS, "features": WIDTHS, "clusters": CLUSTERS, "tol": 0}
    configs = make_configs(
        folder,
        dealer=DEALER,
        triples={"store": "store"},
        engine={"rows_per_shard": SHARD},
        kmeans={**kmeans, "max_iter": ITERATIONS, "products": "he", "reveal": REVEAL},
    )
    for name, columns in zip(BOTH, np.split(matrix(), [WIDTHS["payco"]], axis=1), strict=True):
        sp.save_npz(folder / name / "data.npz", sp.csr_array(columns))
        configs[name] = changed_config(configs[name], {"kmeans": {"data": str(folder / name / "data.npz")}})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layouts, "VALUES_PER_COLUMN_SHARD", CELLS)
        together(run_offline, configs)
    return World(folder, configs, CELLS)


def by_rows(folder: Path) -> World:
    """As for `beaver`, with fewer rows and iterations, and one column in a shard."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_parties, "ROWS", 60)
        patch.setattr(train_parties, "HALF", 34)
        patch.setattr(train_parties, "ROWS_PER_SHARD", 17)
        return make_world(folder, "horizontal", CLUSTERS, max_iter=ITERATIONS, products="he")


def in_threads(world: World) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layouts, "VALUES_PER_COLUMN_SHARD", world.cells)
        together(run_train, {name: world.configs[name] for name in BOTH})


def everything(world: World) -> dict[str, bytes]:
    """All shares at the end: of centroids, too."""
    kept = {name: world.kept(name) / f"centres/{ITERATIONS}" for name in BOTH}
    centres = {f"{name}/{file.name}": file.read_bytes() for name, folder in kept.items() for file in folder.iterdir()}
    return {**shares(world), **centres}


@dataclass(frozen=True)
class Undisturbed:
    """A world before a run by whole iterations, and what the run gave."""

    world: World
    shares: dict[str, bytes]
    results: dict[str, Any]
    messages: Mapping[str, list[tuple[MessageKey, int]]]

    @classmethod
    def of(cls, world: World, folder: Path) -> "Undisturbed":
        trained = world.copied(folder, engine={"rounds": "whole"})
        with pytest.MonkeyPatch.context() as patch:
            keep_messages(patch)
            in_threads(trained)
        messages = {
            name: [
                (key, sum(each.nbytes for each in arrays.values())) for key, arrays in received(trained.configs[name])
            ]
            for name in BOTH
        }
        return cls(world, everything(trained), results(trained), messages)

    def check(self, world: World) -> None:
        assert everything(world) == self.shares
        assert results(world) == self.results
