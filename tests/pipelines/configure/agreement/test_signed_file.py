"""Signed files come from outside: whatever is in them, they are read or refused in one sentence."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.error_sentence import error_sentence
from veilmeans.crypto.certificates import make_identity
from veilmeans.pipelines.configure.agreement.signed_file import (
    MAX_SIZE,
    Answer,
    Invitation,
    Member,
    expiry,
    read_signed,
    sign_file,
)
from veilmeans.schemas.errors import RefusedError, VeilmeansError, printable

PAYCO = make_identity("payco", 2)
BODY = Invitation(
    id="0" * 32,
    sender="payco",
    expires=expiry(3),
    member=Member(certificate=PAYCO.certificate.decode(), address="payco.example:7101", number=3),
    terms={"kmeans.clusters": 3, "kmeans.tol": 1e-4, "kmeans.init.indices": [1, 2]},
)
TEXT = sign_file(BODY, PAYCO).text()
CONTENT: dict[str, Any] = json.loads(TEXT)


def refusal(tmp_path: Path, content: str | bytes) -> str:
    file = tmp_path / "received.json"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    sentence = error_sentence(lambda: read_signed(file), RefusedError)
    assert str(file) in sentence
    assert printable(sentence) == sentence
    assert len(sentence) < 700
    return sentence


def test_a_file_is_read_as_it_was_signed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text(TEXT)
    read = read_signed(tmp_path / "file")
    assert read.body == BODY
    read.check_signature(PAYCO.certificate)
    assert read.text() == TEXT
    assert read.digest == sign_file(BODY, PAYCO).digest


@pytest.mark.parametrize("place", ["body.terms.kmeans\\.clusters", "body.expires", "body.member.number", "body.sender"])
def test_any_change_ends_the_signature(tmp_path: Path, place: str) -> None:
    content = json.loads(TEXT)
    *path, last = [each.replace("\0", ".") for each in place.replace("\\.", "\0").split(".")]
    section = content
    for name in path:
        section = section[name]
    section[last] = {"expires": "2099-01-01T00:00:00Z", "sender": "shop"}.get(last, 7)
    (tmp_path / "file").write_text(json.dumps(content))
    read = read_signed(tmp_path / "file")
    assert "altered" in error_sentence(lambda: read.check_signature(PAYCO.certificate), RefusedError)


def test_the_kind_is_signed(tmp_path: Path) -> None:
    one = sign_file(Answer(proposal="0" * 32, digest="1" * 64, sender="shop", accepted=False), PAYCO)
    (tmp_path / "file").write_text(one.text().replace("false", "true"))
    read = read_signed(tmp_path / "file")
    assert "altered" in error_sentence(lambda: read.check_signature(PAYCO.certificate), RefusedError)


@pytest.mark.parametrize(
    "content",
    [
        "", "hello", "[]", "3", "{}", "\0", b"\xff\xfe", "[" * 100_000, '{"a":' * 50_000, "NaN", "1e999",
        '{"veilmeans": "invitation"}',
        '{"veilmeans": ["invitation"], "version": 1, "body": {}, "signature": ""}',
        TEXT.replace('"version": 1', '"version": 1, "version": 1'),
        TEXT.replace('"number": 3', '"number": 1e999'),
        TEXT.replace('"number": 3', f'"number": {"9" * 5000}'),
        TEXT.replace('"sender": "payco"', '"sender": "\\ud800"'),
        TEXT.replace('"kmeans.tol": 0.0001', f'"kmeans.tol": {"[" * 20 + "]" * 20}'),
    ],
)  # fmt: skip
def test_what_is_no_file_of_ours_is_refused(tmp_path: Path, content: str | bytes) -> None:
    assert "is no file of `veilmeans invite`" in refusal(tmp_path, content)


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ('"id": "00', '"id": "../', "id"),
        ('"sender": "payco"', '"sender": "../payco"', "sender"),
        ('"sender": "payco"', '"sender": "pay\\u001b[2Jco"', "sender"),
        ("payco.example:7101", "payco.example", "member.address"),
        ("payco.example:7101", "a\\u001b[31m:7101", "member.address"),
        ("payco.example:7101", "payco.example:71010", "member.address"),
        ('"number": 3', '"number": "3"', "member.number"),
        ('"number": 3', '"number": 0', "member.number"),
        ('"number": 3', '"number": true', "member.number"),
        ('"number": 3', '"number": 3, "data": "/etc/passwd"', "member.data"),
        ('"number": 3', '"number": 3, "\\u001b[31m": 1', "member.\\x1b[31m"),
        ('"expires": "20', '"expires": "x20', "expires"),
        ('"signature": "', '"signature": "!', "signature"),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, old: str, new: str, field: str) -> None:
    assert old in TEXT
    assert f"is a damaged invitation: {field}" in refusal(tmp_path, TEXT.replace(old, new))


def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    assert "larger than" in refusal(tmp_path, TEXT + " " * MAX_SIZE)


def test_another_version_is_refused(tmp_path: Path) -> None:
    assert "another version" in refusal(tmp_path, TEXT.replace('"version": 1', '"version": 2'))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=9), each, max_size=3),
    max_leaves=8,
)


@given(field=st.sampled_from(sorted(CONTENT["body"])), value=JSON)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_value_of_a_field_is_read_or_refused_in_a_sentence(tmp_path: Path, field: str, value: Any) -> None:
    file = tmp_path / "received.json"
    file.write_text(json.dumps({**CONTENT, "body": {**CONTENT["body"], field: value}}))
    if value == CONTENT["body"][field]:
        return
    with pytest.raises(VeilmeansError) as error:
        read_signed(file).check_signature(PAYCO.certificate)
    assert printable(error.value.sentence) == error.value.sentence


@given(st.text())
def test_nothing_unprintable_is_shown(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert not text.isprintable() or shown == text
