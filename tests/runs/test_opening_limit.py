"""`openings.limit` in whole runs: a training, a prediction and a reveal count, the next one is refused by all parties.

A refusal is one sentence and exit code 6, before anything is sent; what was opened stays, and a higher limit that all
agree on lets the refused command run.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest

from support.commands import Ended, assert_all_succeeded, run_all, start_command
from support.prediction_world import PredictionWorld, make_prediction_world
from support.worlds import changed_config, deal_directly
from veilmeans.io.ledgers.opening_ledger import all_ledgers
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import PeerError, RefusedError

pytestmark = [pytest.mark.processes, pytest.mark.slow]
LIMIT = 3
Configs = Mapping[str, JobConfig]


@pytest.fixture(scope="module")
def used_up(tmp_path_factory: pytest.TempPathFactory) -> PredictionWorld:
    """A training, a prediction with its model, and a reveal: three openings of the trained rows, one of the new."""
    folder = tmp_path_factory.mktemp("world")
    world = make_prediction_world(folder, openings={"limit": LIMIT})
    assert_all_succeeded(run_all("predict", world.prediction.parties, folder))
    assert_all_succeeded(run_all("reveal", revealing(world, ["shop"]), folder))
    return world


def revealing(world: PredictionWorld, who: list[str], limit: int = LIMIT) -> Configs:
    """Configurations that open the trained rows' clusters."""
    reveal = {"assignments": who, "centroids": []}
    return {
        name: changed_config(config, kmeans={"reveal": reveal}, openings={"limit": limit})
        for name, config in world.trained.parties.items()
    }


def again(configs: Configs, limit: int = LIMIT) -> dict[str, JobConfig]:
    """The same job once more, with a triple store of its own."""
    fields = {"run": "again", "triples": {"store": "again"}, "openings": {"limit": limit}}
    return {name: changed_config(config, **fields) for name, config in configs.items()}


def counted(configs: Configs) -> dict[str, list[list[tuple[str, str]]]]:
    """The openings in each party's ledgers, by data: run and command."""
    return {
        name: sorted([(each.run, each.command) for each in ledger.openings()] for ledger in all_ledgers(config))
        for name, config in configs.items()
    }


def files_of(world: PredictionWorld) -> dict[Path, bytes]:
    """What all parties have: results, shares, triple stores, ledgers; no message."""
    files = (file for file in world.trained.folder.rglob("*") if file.is_file() and "inbox" not in file.parts)
    return {file: file.read_bytes() for file in files if file.suffix not in (".log", ".yaml")}


def assert_refused(ended: Mapping[str, Ended], run: str, limit: int = LIMIT) -> None:
    for name, (code, output) in ended.items():
        assert code == RefusedError.code, (name, output)
        sentences = [line for line in output.splitlines() if line.startswith("error:")]
        assert len(sentences) == 1
        assert f"of run '{run}' were opened {limit} times, now 1 more, and openings.limit is {limit}" in sentences[0]
        assert "Traceback" not in output


def test_trainings_predictions_and_reveals_count(used_up: PredictionWorld) -> None:
    trained = used_up.trained.parties
    of_trained_rows = [("new", "predict"), ("test", "train"), ("test", "train")]  # a reveal is of the run that trained
    found = {name: [sorted(each) for each in ledgers] for name, ledgers in counted(trained).items()}
    assert found == {name: [[("new", "predict")], of_trained_rows] for name in trained}


@pytest.mark.parametrize("command", ["train", "predict", "reveal"])
def test_a_command_beyond_the_limit_is_refused_and_nothing_is_lost(
    used_up: PredictionWorld, tmp_path: Path, command: str
) -> None:
    world = used_up.copied(tmp_path / "world")
    if command == "reveal":
        refused, raised = revealing(world, ["payco"]), revealing(world, ["payco"], LIMIT + 1)
    else:
        of = world.trained.parties if command == "train" else world.prediction.parties
        refused, raised = again(of), again(of, LIMIT + 1)
        deal_directly(raised)
    before = files_of(world)
    assert_refused(run_all(command, refused, tmp_path), "test" if command == "reveal" else "again")
    after = files_of(world)
    assert {file: after[file] for file in before} == before
    assert_all_succeeded(run_all(command, raised, tmp_path))
    assert [max(map(len, each)) for each in counted(raised).values()] == [LIMIT + 1] * 2


def test_what_was_opened_before_may_be_repeated(used_up: PredictionWorld, tmp_path: Path) -> None:
    """A rerun of a finished command opens nothing new."""
    world = used_up.copied(tmp_path / "world")
    before = counted(world.trained.parties)
    assert_all_succeeded(run_all("train", world.trained.parties, tmp_path))
    assert_all_succeeded(run_all("predict", world.prediction.parties, tmp_path))
    assert_all_succeeded(run_all("reveal", revealing(world, ["shop"]), tmp_path))
    assert counted(world.trained.parties) == before


def test_one_party_alone_refuses(used_up: PredictionWorld, tmp_path: Path) -> None:
    """Shop's ledger is gone: payco still refuses, and shop learns nothing; it ends when its time is up."""
    world = used_up.copied(tmp_path / "world")
    configs = again(world.trained.parties)
    shop = changed_config(configs["shop"], exchange={"timeout_s": 1.0})
    deal_directly(configs)
    for ledger in all_ledgers(shop):
        for file in ledger.folder.iterdir():
            file.unlink()
    running = start_command("train", shop, tmp_path)
    assert_refused({"payco": start_command("train", configs["payco"], tmp_path).wait()}, "again")
    assert running.wait()[0] == PeerError.code
    assert [len(ledger.openings()) for ledger in all_ledgers(shop)] == [0, 0]
