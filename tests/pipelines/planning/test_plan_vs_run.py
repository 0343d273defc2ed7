"""`veilmeans plan --compare` of five runs: rounds, messages and bytes are those that were planned, step by step.

Every run is of processes over gateways: by columns, by rows, of three parties, under encryption, and stage by stage
over several shards. A plan may be off by 5 % of the bytes; these are not off at all.
"""

import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from support.commands import run_all
from support.fixed_values import fix_costs
from support.he_tables import by_columns
from support.in_process_run import blobs, make_world, tables
from support.parties import NAMES, write_config
from support.train_world import BOTH, changed_config, contents
from veilmeans.pipelines.cli import main as cli
from veilmeans.schemas import layout as layouts
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.layout import VALUES_PER_COLUMN_SHARD

COUNTS = ("rounds", "messages", "bytes_sent", "bytes_received")
JOB = {"clusters": 3, "max_iter": 2}
EVERYTHING = {"assignments": NAMES[:2], "centroids": NAMES[:2], "inertia": NAMES[:1]}


@dataclass(frozen=True)
class Run:
    """A finished run; so many values are in its shards of columns."""

    folder: Path
    configs: Mapping[str, JobConfig]
    cells: int = VALUES_PER_COLUMN_SHARD

    def plan(self, party: str, *options: str) -> str:
        """What the command prints."""
        file = write_config(self.configs[party], self.folder / f"{party}.yaml")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(layouts, "VALUES_PER_COLUMN_SHARD", self.cells)
            fix_costs(patch)
            result = CliRunner().invoke(cli.app, ["plan", "--config", str(file), *options])
        assert result.exit_code == 0, result.output
        return result.stdout

    def compared(self, party: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.plan(party, "--compare", ".", "--json", "-"))
        return found


def trained(folder: Path, configs: Mapping[str, JobConfig], cells: int = VALUES_PER_COLUMN_SHARD) -> Run:
    done = run_all("train", configs, folder, cells)
    assert {code for code, _ in done.values()} == {0}, done
    return Run(folder, configs, cells)


def of_columns(folder: Path) -> Run:
    parts = tables(blobs(41, 5), list("abcde"), [2], axis=1)
    return trained(folder, make_world(folder, parts, {"layout": "vertical", "reveal": EVERYTHING, **JOB}))


def of_rows(folder: Path) -> Run:
    parts = tables(blobs(41, 3), list("abc"), [17], axis=0)
    job = {"layout": "horizontal", "normalise": {"aggregate": True}, "reveal": EVERYTHING, "tol": 1e-9, **JOB}
    return trained(folder, make_world(folder, parts, job))


def of_three(folder: Path) -> Run:
    """Two shards; only one party learns anything."""
    parts = tables(blobs(30, 4), list("abcd"), [1, 2], axis=1)
    job = {"layout": "vertical", "reveal": {"assignments": ["bank"], "inertia": ["bank"]}, **JOB}
    return trained(folder, make_world(folder, parts, job, engine={"rows_per_shard": 17}))


def encrypted(folder: Path) -> Run:
    """Column shards of two columns, one of which has two owners."""
    world = by_columns(folder)
    return trained(folder, {name: world.configs[name] for name in BOTH}, world.cells)


def staged(folder: Path) -> Run:
    """Each round a Beam stage at one party, over five shards of rows and three of columns."""
    parts = tables(blobs(50, 3), list("abc"), [22], axis=0)
    normalise = {"method": "zscore", "aggregate": True}
    job = {"layout": "horizontal", "normalise": normalise, "products": "beaver", "reveal": EVERYTHING, **JOB}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layouts, "VALUES_PER_COLUMN_SHARD", 3)
        configs = make_world(folder, parts, job, engine={"rows_per_shard": 12})
    configs["payco"] = changed_config(configs["payco"], {"engine": {"rounds": "stages"}})
    return trained(folder, configs, cells=3)


RUNS: dict[str, Callable[[Path], Run]] = {
    each.__name__: each for each in (of_columns, of_rows, of_three, encrypted, staged)
}


@pytest.fixture(scope="module", params=RUNS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return RUNS[request.param](tmp_path_factory.mktemp(request.param))


def sizes_below(folder: Path, *kinds: str) -> int:
    return sum(file.stat().st_size for kind in kinds for file in (folder / kind).rglob("*.arrow"))


def test_what_was_planned_is_what_is_measured(run: Run) -> None:
    for party in run.configs:
        found = run.compared(party)
        assert found["iterations"] == 2
        for pair in (*found["steps"], found["total"]):
            planned, measured = ({name: pair[side][name] for name in COUNTS} for side in ("planned", "measured"))
            assert planned == measured, pair["name"]
            assert set(pair["difference"].values()) == {0.0}
        assert found["total"]["measured"]["messages"] > 100


def test_disk_is_as_planned(run: Run) -> None:
    for party, config in run.configs.items():
        disk = json.loads(run.plan(party, "--json", "-"))["disk"]
        kept = config.run_folder
        assert disk["store"] == sizes_below(config.store_folder, "corrections", "ciphers")
        assert disk["operands"] == sizes_below(kept, "operands")
        checkpoints = sizes_below(kept, "checkpoints", "centres", "assignments")
        assert checkpoints <= disk["checkpoints"] < checkpoints + 10_000


def test_both_as_text_and_as_a_file(run: Run) -> None:
    file = run.folder / "found.json"
    text = run.plan("shop", "--compare", "test", "--json", str(file))
    assert json.loads(file.read_text()) == run.compared("shop")
    assert max(map(len, text.splitlines())) <= 80
    for part in ("shop in run 'test', 2 iterations", "quotient", "measured", "the run took", "planned: LAN "):
        assert part in text
    assert "…" not in text


def test_dry_runs_after_a_run_change_nothing(run: Run) -> None:
    """What would be opened by another policy; the run itself is over."""
    config = changed_config(run.configs["shop"], {"kmeans": {"reveal": {"assignments": NAMES[:2], "inertia": []}}})
    file = str(write_config(config, run.folder / "later.yaml"))
    now = write_config(run.configs["shop"], run.folder / "now.yaml")
    before = contents(run.folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layouts, "VALUES_PER_COLUMN_SHARD", run.cells)
        fix_costs(patch)
        reveal = CliRunner().invoke(cli.app, ["reveal", "-c", file, "--dry-run"])
        train = CliRunner().invoke(cli.app, ["train", "-c", str(now), "--dry-run"])
    assert (reveal.exit_code, train.exit_code) == (0, 0), (reveal.output, train.output)
    assert contents(run.folder) == before
    assert "would open assignments to payco, shop\n" in reveal.output
    assert f"would write {config.run_folder}/assignments.parquet\n" in reveal.output
    assert "shop in run 'test' with payco" in train.output


# Reports that are not what they should be; no process is needed for them.
@pytest.fixture
def planned(tmp_path: Path) -> Run:
    parts = tables(blobs(12, 3), list("abc"), [1], axis=1)
    return Run(tmp_path, make_world(tmp_path, parts, {"layout": "vertical", "reveal": EVERYTHING, **JOB}))


def refused(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> tuple[int, str]:
    fix_costs(monkeypatch)
    file = write_config(run.configs["payco"], run.folder / "payco.yaml")
    monkeypatch.setattr(sys, "argv", ["veilmeans", "plan", "-c", str(file), "--compare", name])
    with pytest.raises(SystemExit) as ending:
        cli.main()
    return int(ending.value.code or 0), capsys.readouterr().err


def test_a_run_that_is_not_there_is_one_sentence(
    planned: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = refused(planned, monkeypatch, capsys, "other")
    assert code == 8
    assert re.fullmatch(
        r"error: run 'other' has no report at payco \(.*report.json\): train it, or name another.*\n", said
    )
    assert refused(planned, monkeypatch, capsys, "../other")[0] == 2


@pytest.mark.parametrize("content", ["", "[]", '{"seconds": 1, "stages": {}}', '{"seconds": "x"}'])
def test_a_report_that_is_none_is_one_sentence(
    planned: Run, content: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = planned.configs["payco"].run_folder / "report.json"
    file.parent.mkdir(parents=True)
    file.write_text(content)
    code, said = refused(planned, monkeypatch, capsys, ".")
    assert (code, said) == (8, f"error: {file} cannot be read as the report of a K-means run\n")


def test_what_nobody_planned_and_what_is_missing_are_shown(planned: Run) -> None:
    counts = {"messages": 3, "bytes_sent": 10, "bytes_received": 20, "computed_us": 500_000}
    other = "reveal-centres-0123456789ab.00.centres"
    report = {"seconds": 2.5, "iterations": [{"done": 1}], "stages": {"strange.00.x": counts, other: counts}}
    folder = planned.configs["payco"].run_folder
    folder.mkdir(parents=True)
    (folder / "report.json").write_text(json.dumps(report))
    found = planned.compared("payco")
    steps = {pair["name"]: pair for pair in found["steps"]}
    assert (found["iterations"], found["seconds"]) == (1, 2.5)
    assert steps["strange"]["difference"]["bytes_sent"] is None
    assert steps["strange"]["measured"]["seconds"] == {"computed": 0.5, "waited": 0.0, "handed_over": 0.0}
    assert steps["assign"]["difference"]["bytes_sent"] == -100
    assert steps["reveal-centres"]["measured"]["messages"] == 0, "that was another policy's"
    assert found["total"]["measured"]["bytes_received"] == 20
