"""What an ended run forgets and what it keeps, in its folder."""

from pathlib import Path

import numpy as np
import pytest

from veilmeans.io.ledgers.forgetting import forget_iterations
from veilmeans.io.storage.checkpoints import Checkpoints, assignments, centroids, encrypted, scores, seed_weights, seeds
from veilmeans.schemas.run_folder import CHOSEN, OPERANDS, RunFolder

DONE = 2
ARRAYS = {"x": np.arange(3, dtype=np.uint64)}


@pytest.fixture
def run(tmp_path: Path) -> Checkpoints:
    """A run of two iterations with everything that one can have."""
    made = Checkpoints(RunFolder(tmp_path / "run"), bytes(32))
    kinds = [OPERANDS, *(kind(number) for number in (1, 2) for kind in (seeds, seed_weights))]
    kinds += [kind(number) for number in range(DONE + 1) for kind in (centroids, encrypted)]
    kinds += [kind(number) for number in range(1, DONE + 2) for kind in (assignments, scores)]
    for kind in kinds:
        made.write_shard(kind, 0, ARRAYS)
    for number in range(DONE + 1):
        made.write(number, ARRAYS)
    return made


def files(run: Checkpoints) -> set[str]:
    return {str(file.relative_to(run.folder.path)) for file in run.folder.path.rglob("*") if file.is_file()}


def names(run: Checkpoints, *kinds: str) -> set[str]:
    shards = {str(run.folder.shard(kind, 0).relative_to(run.folder.path)) for kind in kinds}
    return shards | {str(run.folder.checkpoint(DONE).relative_to(run.folder.path))}


def test_only_the_last_shares_stay_and_a_second_time_changes_nothing(run: Checkpoints) -> None:
    for _ in range(2):
        forget_iterations(run.folder, DONE, DONE + 1)
        assert files(run) == names(run, centroids(DONE), assignments(DONE + 1), scores(DONE + 1))
    np.testing.assert_array_equal(run.read_shard(centroids(DONE), 0)["x"], ARRAYS["x"])


def test_of_several_starts_the_best_ones_centroids_stay_alone(run: Checkpoints) -> None:
    run.write_shard(CHOSEN, 0, ARRAYS)
    forget_iterations(run.folder, DONE, DONE + 1)
    assert files(run) == names(run, CHOSEN, assignments(DONE + 1), scores(DONE + 1))
