"""What the parties agree on: the difference is named, with both values."""

import pytest

from veilmeans.schemas.errors import HandshakeError
from veilmeans.schemas.handshake_terms import Terms, first_difference

MINE = {"protocol version": 1, "rows": 10_000, "parties": ["payco", "shop"], "dealer": None, "bound": 5}


def test_equal_terms_do_not_differ() -> None:
    assert first_difference(Terms(MINE), Terms(dict(MINE)), "shop") is None


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("rows", 9_998, "rows is 10,000 here and 9,998 at shop"),
        ("parties", ["shop", "payco"], "parties is payco, shop here and shop, payco at shop"),
        ("dealer", "notary", "dealer is not set here and notary at shop"),
        ("protocol version", 2, "protocol version is 1 here and 2 at shop"),
        ("bound", True, "bound is 5 here and True at shop"),
    ],
)
def test_a_difference_names_the_field_and_both_values(field: str, value: object, sentence: str) -> None:
    assert first_difference(Terms(MINE), Terms({**MINE, field: value}), "shop") == sentence


def test_a_field_that_only_one_side_has_differs() -> None:
    fewer = {name: value for name, value in MINE.items() if name != "rows"}
    assert first_difference(Terms(MINE), Terms(fewer), "shop") == "rows is 10,000 here and not set at shop"
    assert first_difference(Terms(fewer), Terms(MINE), "shop") == "rows is not set here and 10,000 at shop"


def test_another_protocol_version_is_told_before_anything_else() -> None:
    other = {**MINE, "protocol version": 2, "bound": 6}
    assert first_difference(Terms(MINE), Terms(other), "shop") == "protocol version is 1 here and 2 at shop"


def test_what_is_announced_and_what_is_bound_need_not_be_alike() -> None:
    assert first_difference(Terms(MINE, {"columns": ["a"]}, "x"), Terms(MINE, {"columns": ["b"]}, "y"), "shop") is None


def test_terms_come_back_from_their_mapping() -> None:
    terms = Terms(MINE, {"columns": ["a"]}, "x")
    assert Terms.from_dict("shop", terms.to_dict()) == terms


@pytest.mark.parametrize("raw", [None, 5, [], "x", {}, {"agreed": {}}, {"agreed": 5, "announced": {}, "binding": ""}])
def test_what_are_no_terms_is_refused_with_the_name_of_the_peer(raw: object) -> None:
    with pytest.raises(HandshakeError, match="handshake of shop cannot be read"):
        Terms.from_dict("shop", raw)
