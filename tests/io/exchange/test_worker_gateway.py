"""The gateway's side for workers: with a token they send, read and get keys of their run, and nothing else."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from support.error_sentence import error_sentence
from support.parties import free_ports, make_configs
from support.worlds import changed_config
from veilmeans.io.exchange import connections
from veilmeans.io.exchange.connections import close_exchange, load_identity, open_exchange, open_gateway, run_seed
from veilmeans.io.exchange.exchange import Outgoing, get_arrays
from veilmeans.io.exchange.worker_gateway import WorkerTranscript
from veilmeans.io.files.secret_files import read_secret
from veilmeans.io.messages.transcript import Transcript
from veilmeans.io.storage.run_token import TOKEN, TOKEN_FILE, RunToken, make_token, revoke_tokens
from veilmeans.schemas.address import Address
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import ConfigError, RefusedError
from veilmeans.schemas.message import MessageKey

ARRAYS = {"x": np.arange(5, dtype=np.uint64)}


@pytest.fixture
def configs(tmp_path: Path) -> Iterator[dict[str, JobConfig]]:
    made = make_configs(tmp_path, triples={"store": "october"})
    workers = {"listen": f"127.0.0.1:{free_ports(1)[0]}"}
    made["payco"] = changed_config(made["payco"], shared=str(tmp_path / "bucket"), workers=workers)
    with ExitStack() as stack:
        for config in made.values():
            stack.callback(close_exchange, config)
        yield made


def as_worker(config: JobConfig, monkeypatch: pytest.MonkeyPatch, token: str | None = None) -> JobConfig:
    """The configuration as a worker gets it: none of the party's files are there."""
    own = make_token(read_secret(config.seed), config, load_identity(config).certificate).encode()
    monkeypatch.setenv(TOKEN, own if token is None else token)
    connections._keys.clear()
    lost = {name: Path("/nowhere") / name for name in ("seed", "key", "certificate", "storage")}
    return config.model_copy(update=lost)


def key(run: str, sender: str = "payco", recipient: str = "shop", stage: str = "share") -> MessageKey:
    return MessageKey(Address(run, 0, stage, 0), sender, recipient)


def test_a_worker_sends_reads_and_records_through_its_gateway(
    configs: dict[str, JobConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    payco, shop = configs["payco"], configs["shop"]
    run = payco.run
    worker = as_worker(payco, monkeypatch)
    with open_gateway(payco), open_gateway(shop):
        exchange = open_exchange(worker)
        sent = Outgoing.of(key(run), ARRAYS)
        exchange.put_all([sent])
        np.testing.assert_array_equal(get_arrays(open_exchange(shop), key(run), 20)["x"], ARRAYS["x"])
        back = key(run, "shop", "payco")
        open_exchange(shop).put_all([Outgoing.of(back, ARRAYS)])
        np.testing.assert_array_equal(get_arrays(exchange, back, 20)["x"], ARRAYS["x"])
        assert run_seed(worker, "binding") == run_seed(payco, "binding") != run_seed(payco, "another")
        transcript = connections.transcript_of(worker, "", exchange)
        assert isinstance(transcript, WorkerTranscript)
        transcript.record([(sent.key, sent.header)], True)
        transcript.sync(0)
        (line,) = Transcript(payco.run_folder.transcript(), run).lines(0)
        assert (line.key(run, 0), line.size, line.digest) == (sent.key, sent.header.size, sent.header.digest.hex())
        close_exchange(worker)


def test_a_gateway_that_restarts_is_called_again(
    configs: dict[str, JobConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    payco, shop = configs["payco"], configs["shop"]
    worker = as_worker(payco, monkeypatch)
    with open_gateway(shop):
        for stage in ("first", "second"):
            with open_gateway(payco):
                open_exchange(worker).put_all([Outgoing.of(key(payco.run, stage=stage), ARRAYS)])
        for stage in ("first", "second"):
            assert get_arrays(open_exchange(shop), key(payco.run, stage=stage), 20)
        close_exchange(worker)


def test_a_token_is_for_its_run_and_for_its_own_party(
    configs: dict[str, JobConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    payco = configs["payco"]
    worker = as_worker(payco, monkeypatch)
    with open_gateway(payco):
        exchange = open_exchange(worker)
        for run in ("another", "store-november", f"{payco.run}x"):
            wrong = Outgoing.of(key(run), ARRAYS)
            assert "token is for run" in error_sentence(lambda wrong=wrong: exchange.put_all([wrong]), ConfigError)
            asked = key(run, "shop", "payco")
            assert "token is for run" in error_sentence(lambda asked=asked: exchange.get(asked, 1), ConfigError)
            lost = worker.model_copy(update={"run": run})
            assert "token is for run" in error_sentence(lambda lost=lost: run_seed(lost, ""), ConfigError)
        forged = Outgoing.of(key(payco.run, "shop", "shop"), ARRAYS)
        assert "not from payco to a peer" in error_sentence(lambda: exchange.put_all([forged]), RefusedError)
        with pytest.raises(RefusedError, match="drop-messages"):
            exchange.drop_messages(payco.run)
        close_exchange(worker)


def test_a_token_that_the_party_did_not_make_is_refused(
    configs: dict[str, JobConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    payco = configs["payco"]
    made = make_token(read_secret(payco.seed), payco, load_identity(payco).certificate)
    for wrong in (replace(made, run="another"), replace(made, store="x"), replace(made, proof="0" * 64)):
        worker = as_worker(payco, monkeypatch, wrong.encode())
        with open_gateway(payco):
            assert "was not made by payco" in error_sentence(lambda worker=worker: run_seed(worker, ""), ConfigError)
        close_exchange(worker)
    assert made.proof not in repr(made)


def test_a_revoked_token_is_refused_at_once_and_a_new_one_is_not(
    configs: dict[str, JobConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    payco = configs["payco"]
    worker = as_worker(payco, monkeypatch)
    with open_gateway(payco):
        seed = run_seed(worker, "")
        revoke_tokens(payco.run_folder)
        asked = key(payco.run, "shop", "payco")
        assert "was revoked" in error_sentence(lambda: open_exchange(worker).get(asked, 1), ConfigError)
        close_exchange(worker)
        old = make_token(read_secret(payco.seed), payco, load_identity(payco).certificate)
        forged = replace(old, revocations="0").encode()
        worker = as_worker(payco, monkeypatch, forged)
        assert "was not made by payco" in error_sentence(lambda: run_seed(worker, ""), ConfigError)
        close_exchange(worker)
        worker = as_worker(payco, monkeypatch)
        assert run_seed(worker, "") == seed
        close_exchange(worker)


def test_a_missing_or_unreadable_token_is_one_sentence(
    configs: dict[str, JobConfig], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    worker = as_worker(configs["payco"], monkeypatch, "no token")
    assert f"{TOKEN} holds no token" in error_sentence(lambda: open_exchange(worker), ConfigError)
    monkeypatch.delenv(TOKEN)
    monkeypatch.setenv(TOKEN_FILE, str(tmp_path / "lost"))
    assert "has no token of run" in error_sentence(lambda: open_exchange(worker), ConfigError)


def test_a_token_admits_its_run_its_sweep_and_its_store() -> None:
    token = RunToken("payco", "march", "october", "", "")
    admitted = [
        run for run in ("march", "march.k3", "store-october", "marching", "store-", "april") if token.admits(run)
    ]
    assert admitted == ["march", "march.k3", "store-october"]
    assert not replace(token, store="").admits("store-")
