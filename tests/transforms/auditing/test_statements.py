"""Signed statements of transcripts: who did not sign one, or signed another, is named."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from support.parties import make_configs
from veilmeans.io.exchange.connections import load_peer_certificates
from veilmeans.io.messages.transcript import Transcript, TranscriptWriter
from veilmeans.schemas.address import Address
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import RefusedError
from veilmeans.schemas.message import Header, MessageKey
from veilmeans.transforms.auditing.statements import SignedStatement, compare_statement, own_statement


@pytest.fixture
def configs(tmp_path: Path) -> dict[str, JobConfig]:
    return make_configs(tmp_path)


def transcript_of(config: JobConfig, digest: bytes = bytes(32)) -> Transcript:
    """A party's transcript of one message from shop to payco."""
    folder = config.run_folder.transcript()
    key = MessageKey(Address("test", 0, "assign.00.open", 0), "shop", "payco")
    TranscriptWriter(folder).record([(key, Header(8, digest))], broadcast=False)
    return Transcript(folder, "test")


def compare(configs: dict[str, JobConfig], statement: SignedStatement) -> None:
    """Compare shop's statement with payco's transcript."""
    certificate = load_peer_certificates(configs["payco"])["shop"]
    compare_statement(configs["payco"], [transcript_of(configs["payco"])], "shop", statement, certificate)


def test_the_same_transcript_is_accepted_and_another_is_not(configs: dict[str, JobConfig]) -> None:
    compare(configs, own_statement(configs["shop"], [transcript_of(configs["shop"])]))
    configs["shop"].run_folder.transcript().joinpath("0").rename(configs["shop"].storage / "old")
    (configs["shop"].run_folder.transcripts / "signed.shop.json").unlink()
    lie = own_statement(configs["shop"], [transcript_of(configs["shop"], b"\1" * 32)])
    with pytest.raises(RefusedError, match="payco and shop have different transcripts of run 'test', from iteration 0"):
        compare(configs, lie)


def test_a_statement_that_shop_did_not_sign_is_refused(configs: dict[str, JobConfig]) -> None:
    true = own_statement(configs["shop"], [transcript_of(configs["shop"])])
    forged = own_statement(configs["payco"], [transcript_of(configs["payco"])])
    content = json.dumps({**json.loads(true.content), "more": 1}).encode()
    for statement in (replace(true, signature=forged.signature), replace(true, content=content)):
        with pytest.raises(RefusedError, match="the transcript of shop is not signed with the key of its certificate"):
            compare(configs, statement)


def test_bytes_that_are_no_statement_are_refused() -> None:
    """`make fuzz` found that bytes which are no text ended in a traceback."""
    for content in (b"\xc4", "ä".encode()):
        arrays = {"statement": np.frombuffer(content, np.uint8), "signature": np.zeros(70, np.uint8)}
        with pytest.raises(RefusedError, match="the transcript of shop cannot be read"):
            SignedStatement.of_message("shop", arrays)
