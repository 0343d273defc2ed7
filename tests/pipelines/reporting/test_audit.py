"""Transcripts of whole runs: signed by all, compared at the farewell, and replayed bit for bit by `veilmeans audit`."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from support.worlds import BOTH, World, two_companies
from veilmeans.io.messages.transcript import Transcript
from veilmeans.pipelines.reporting.audit import run_audit
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import ConfigError, RefusedError, StorageError
from veilmeans.transforms.auditing import statements
from veilmeans.transforms.auditing.statements import statement_file

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["vertical", "horizontal"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp(request.param)
    world = two_companies(folder, request.param, max_iter=2, tol=1e-9)
    world = world.altered(audit={"keep": True})
    world.train()
    return world


def audited(config: JobConfig, iteration: int | None = None, shard: int | None = None) -> list[str]:
    return list(run_audit(config, iteration, shard))


def test_a_run_is_replayed_bit_for_bit_at_every_party(trained: World) -> None:
    for config in trained.parties.values():
        lines = audited(config)
        assert any("iteration 1: " in line for line in lines)
        assert "shares that this party has kept" in lines[-1]


def test_one_shard_of_one_iteration_is_replayed_alone(trained: World) -> None:
    replayed = next(line for line in audited(trained["payco"], 1, 1) if line.startswith("iteration 1"))
    few, all_ = replayed.split(": ")[1].split(" messages")[0].split(" of ")
    assert 0 < int(few) < int(all_)


def test_an_iteration_or_shard_that_is_not_there_is_named(trained: World) -> None:
    with pytest.raises(ConfigError, match="has no iteration 7"):
        audited(trained["payco"], 7)
    with pytest.raises(ConfigError, match="row shards"):
        audited(trained["payco"], 1, 99)


def sign_again(world: World, name: str) -> None:
    """Let all parties sign what this one's transcript says now."""
    config = world[name].online()
    transcript = Transcript(config.run_folder.transcript(), config.run)
    links = {peer: statements.own_links(config, transcript, peer) for peer in config.peers}
    for party in world.parties:
        peers = config.peers if party == name else (name,)
        stated = {peer: links[peer if party == name else party] for peer in peers}
        content = {"party": party, "run": config.run, "transcripts": {config.run: stated}}
        encoded = json.dumps(content, sort_keys=True).encode()
        signature = statements.sign(statements.load_identity(world[party]), statements._LABEL + encoded)
        statements.SignedStatement(encoded, signature).write(statement_file(config, party))


def change_line(world: World, name: str, stage: str) -> None:
    """Change the digest of one message that a party sent."""
    folder = world[name].run_folder.transcript() / "1"
    for file in folder.glob("*.log"):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        for line in lines:
            if line[0].startswith(stage) and line[2] == name:
                line[-1] = "00" * 32
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_message_that_the_protocol_does_not_make_is_named(trained: World, tmp_path: Path) -> None:
    world = trained.copied(tmp_path / "copy")
    change_line(world, "payco", "assign.01")
    with pytest.raises(RefusedError, match="is not what payco signed, from iteration 1 on"):
        audited(world["payco"])
    sign_again(world, "payco")
    with pytest.raises(RefusedError, match=r"test/1/assign\.01\.\S+ from payco to shop is not what the protocol makes"):
        audited(world["payco"])


def test_other_data_are_not_those_of_the_handshake(trained: World, tmp_path: Path) -> None:
    world = trained.copied(tmp_path / "copy")
    other = two_companies(tmp_path / "other", world["payco"].required_kmeans.layout, rows=200)
    table = pq.read_table(other.data("payco"))
    column = table.column_names[-1]
    changed = table.set_column(table.num_columns - 1, column, pc.add(table[column], pa.scalar(1e-3)))
    pq.write_table(changed, world.data("payco"))
    with pytest.raises(RefusedError, match="are not those to which run 'test' was bound"):
        audited(world["payco"])


def test_a_changed_share_is_found_by_its_tag_and_a_changed_kept_message_by_its_digest(
    trained: World, tmp_path: Path
) -> None:
    world = trained.copied(tmp_path / "copy")
    for file in (world["shop"].run_folder.transcript() / "1").glob("*.messages"):
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
    with pytest.raises(RefusedError, match=r"test/1/\S+ from payco to shop was altered"):
        audited(world["shop"])


def test_without_audit_keep_the_chains_are_checked_and_a_replay_says_what_it_lacks(tmp_path: Path) -> None:
    world = two_companies(tmp_path / "world", "vertical", rows=20, half=10, max_iter=1)
    world.train()
    checks = run_audit(world["payco"])
    assert ["has signed this transcript" in next(checks) for _ in BOTH] == [True, True]
    with pytest.raises(StorageError, match=r"audit\.keep"):
        list(checks)
    assert list((world["payco"].run_folder.transcript()).glob("*/*.messages")) == []


def test_transcripts_that_differ_end_the_run_with_an_error_and_no_farewell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = two_companies(tmp_path / "world", "vertical", rows=20, half=10, max_iter=1)
    links = Transcript.links

    def lying(self: Transcript, me: str, peer: str, beginning: bytes) -> list[tuple[int, str]]:
        true = links(self, me, peer, beginning)
        return true if me == "payco" else [*true[:-1], (true[-1][0], "00" * 32)]

    monkeypatch.setattr(Transcript, "links", lying)
    with pytest.raises(RefusedError, match="have different transcripts of run 'test', from iteration 1 on"):
        world.train()
    assert not world["payco"].run_folder.farewell.exists()
