"""Tokens of a run's workers: written by a command, revoked by another, and made anew."""

from pathlib import Path

import pytest

from support.error_sentence import error_sentence
from support.parties import file_mode, free_ports, make_configs
from support.worlds import changed_config
from veilmeans.io.exchange.connections import GatewaySecrets
from veilmeans.io.storage.run_token import RunToken
from veilmeans.pipelines.configure.party_keys import revoke_run_tokens, write_token
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import ConfigError


@pytest.fixture
def config(tmp_path: Path) -> JobConfig:
    workers = {"listen": f"127.0.0.1:{free_ports(1)[0]}"}
    return changed_config(make_configs(tmp_path)["payco"], shared=str(tmp_path / "bucket"), workers=workers)


def test_a_revoked_token_is_refused_and_the_next_is_not(config: JobConfig, tmp_path: Path) -> None:
    gateway = GatewaySecrets(config)
    tokens = []
    for name in ("first", "second", "third"):
        file = tmp_path / name
        assert str(file) in write_token(config, file)
        assert file_mode(file) == 0o600
        tokens.append(RunToken.parse(file.read_text(), name))
        gateway.check(tokens[-1])
        assert "refuses all tokens of run 'test'" in revoke_run_tokens(config)
        for token in tokens:
            assert "was revoked" in error_sentence(lambda token=token: gateway.check(token), ConfigError)


def test_the_tokens_of_another_run_stay(config: JobConfig, tmp_path: Path) -> None:
    other = config.model_copy(update={"run": "april"})
    write_token(other, tmp_path / "april")
    revoke_run_tokens(config)
    GatewaySecrets(config).check(RunToken.parse((tmp_path / "april").read_text(), "april"))
