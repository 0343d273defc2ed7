"""The terms of a handshake: a difference is named, with both values."""

import pytest

from veilmeans.schemas.errors import HandshakeError
from veilmeans.schemas.handshake_terms import Terms, first_difference

MINE = {"protocol version": 1, "rows": 10_000, "parties": ["payco", "shop"], "dealer": None, "bound": 5}


def test_equal_terms_do_not_differ() -> None:
    assert first_difference(Terms(MINE), Terms(dict(MINE)), "shop") is None


@pytest.mark.parametrize(
    ("field", "value", "here", "there"),
    [
        ("rows", 9_998, "10,000", "9,998"),
        ("parties", ["shop", "payco"], "payco, shop", "shop, payco"),
        ("parties", [], "payco, shop", "none"),
        ("dealer", "notary", "not set", "notary"),
        ("protocol version", 2, "1", "2"),
        ("bound", True, "5", "True"),
    ],
)
def test_a_difference_names_the_field_both_values_and_the_peer(
    field: str, value: object, here: str, there: str
) -> None:
    found = first_difference(Terms(MINE), Terms({**MINE, field: value}), "shop")
    assert found == f"{field} is {here} here and {there} at shop"


def test_a_field_that_one_party_lacks_differs() -> None:
    fewer = {name: value for name, value in MINE.items() if name != "rows"}
    assert first_difference(Terms(MINE), Terms(fewer), "shop") == "rows is 10,000 here and not set at shop"
    assert first_difference(Terms(fewer), Terms(MINE), "shop") == "rows is not set here and 10,000 at shop"


def test_the_protocol_version_and_the_parties_are_named_first() -> None:
    other = {**MINE, "parties": [], "bound": 6}
    assert str(first_difference(Terms(MINE), Terms(other), "shop")).startswith("parties ")
    other["protocol version"] = 2
    assert str(first_difference(Terms(MINE), Terms(other), "shop")).startswith("protocol version ")


def test_announced_values_and_bindings_may_differ() -> None:
    assert first_difference(Terms(MINE, {"columns": ["a"]}, "x"), Terms(MINE, {"columns": ["b"]}, "y"), "shop") is None


def test_terms_come_back_from_their_mapping() -> None:
    terms = Terms(MINE, {"columns": ["a"]}, "x")
    assert Terms.from_dict("shop", terms.to_dict()) == terms


@pytest.mark.parametrize("raw", [None, 5, [], "x", {}, {"agreed": {}}, {"agreed": 5, "announced": {}, "binding": ""}])
def test_malformed_terms_are_refused_with_the_name_of_the_peer(raw: object) -> None:
    with pytest.raises(HandshakeError, match="shop"):
        Terms.from_dict("shop", raw)


def nested(levels: int) -> object:
    value: object = 0
    for _ in range(levels):
        value = [value]
    return value


def test_terms_that_are_nested_too_deeply_are_refused() -> None:
    """A value of some hundred levels is parsed, and then cannot be quoted or sent back."""
    terms = {"agreed": {"rows": nested(900)}, "announced": {}, "binding": ""}
    with pytest.raises(HandshakeError, match="shop"):
        Terms.from_dict("shop", terms)


def test_a_long_value_is_not_quoted_in_full() -> None:
    sentence = first_difference(Terms(MINE), Terms({**MINE, "dealer": "x" * 100_000}), "shop")
    assert sentence is not None
    assert len(sentence) < 400
