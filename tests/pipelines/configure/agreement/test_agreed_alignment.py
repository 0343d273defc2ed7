"""Alignment among separate companies: an invitation with --align, and proposals that begin or end it."""

from pathlib import Path

import pytest

from support.companies import Company, refused, resigned_file
from support.error_sentence import error_sentence
from veilmeans.pipelines.configure.agreement.shared_terms import terms_of
from veilmeans.schemas.errors import ConfigError, InputError, RefusedError


@pytest.fixture
def companies(tmp_path: Path) -> tuple[Company, Company]:
    """payco with eight rows and shop with six others, in their folders."""
    payco, shop = Company(tmp_path, "payco"), Company(tmp_path, "shop")
    cards = "".join(f"c{i},{'ab'[i % 2]},{i}\n" for i in range(8))
    (payco.folder / "data.csv").write_text(f"id,card,x\n{cards}")
    (shop.folder / "data.csv").write_text("id,y\n" + "".join(f"c{i},{i}\n" for i in range(9, 3, -1)))
    return payco, shop


def test_an_invitation_to_align_needs_no_number_of_rows(companies: tuple[Company, Company]) -> None:
    payco, shop = companies
    payco.accept(shop.join(payco.invite("shop", rows=None, columns=None, align=True), columns=None))
    assert payco.words == shop.words
    for each in companies:
        assert each.config.align is not None
        assert each.config.required_kmeans.rows is None
        assert each.config.required_kmeans.features == {"payco": 3, "shop": 1}


def test_categories_are_declared_since_common_rows_may_have_fewer(companies: tuple[Company, Company]) -> None:
    payco, _ = companies
    payco.invite("shop", rows=None, columns=None, align=True)
    assert payco.config.required_kmeans.categories == {"card": ("a", "b")}
    assert payco.config.required_kmeans.one_hot == ()


def test_fields_of_the_alignment_are_terms(companies: tuple[Company, Company]) -> None:
    payco, shop = companies
    payco.invite("shop", rows=None, columns=None, align=True)
    text = payco.config_file.read_text().replace("align: true", "align: {name: customers, case: lower, missing: drop}")
    payco.config_file.write_text(text)
    payco.accept(shop.join(payco.invite("shop", rows=None, columns=None), columns=None))
    align = shop.config.align
    assert align is not None
    assert (align.name, align.case, align.missing) == (
        "customers",
        "lower",
        "error",
    )
    assert payco.words == shop.words


def test_rows_that_differ_lead_to_align(companies: tuple[Company, Company]) -> None:
    payco, shop = companies
    invitation = payco.invite("shop", rows=None, columns=None)
    sentence = error_sentence(lambda: shop.join(invitation, columns=None), InputError)
    assert "kmeans.rows is 6 here and 8 in the invitation" in sentence
    assert "another invitation with --align, which finds the rows that all have" in sentence


def test_a_number_of_rows_is_refused_where_nobody_knows_it(tmp_path: Path) -> None:
    payco, shop = Company(tmp_path, "payco"), Company(tmp_path, "shop")
    assert "--rows is not needed" in error_sentence(lambda: payco.invite("shop", align=True), InputError)
    invitation = payco.invite("shop", rows=None)
    assert "--rows is not needed" in error_sentence(lambda: shop.join(invitation, rows=7), InputError)
    payco.accept(shop.join(invitation))
    assert payco.words == shop.words
    with pytest.raises(ConfigError, match="--align differs"):
        payco.invite("shop", align=False, rows=None)


def test_proposals_begin_and_end_an_alignment(tmp_path: Path) -> None:
    payco, shop = Company(tmp_path, "payco"), Company(tmp_path, "shop")
    payco.accept(shop.join(payco.invite("shop")))
    payco.accept(shop.answer(payco.propose("align=true", "align.case=lower", "kmeans.rows=null")))
    assert [each.config.align is not None and each.config.align.case for each in (payco, shop)] == ["lower"] * 2
    assert payco.words == shop.words
    shop.accept(payco.answer(shop.propose("align=false", "kmeans.rows=12")))
    assert [(each.config.align, each.config.required_kmeans.rows) for each in (payco, shop)] == [(None, 12)] * 2
    assert terms_of(payco.config) == terms_of(shop.config)


@pytest.mark.parametrize("value", [{"name": "x"}, "yes", 1])
def test_align_is_true_or_false_in_a_file(tmp_path: Path, value: object) -> None:
    payco, shop = Company(tmp_path, "payco"), Company(tmp_path, "shop")
    invitation = payco.invite("shop", rows=None, align=True)
    terms = {**terms_of(payco.config), "align": value}
    terms.pop("kmeans.features")
    altered = resigned_file(invitation, payco.identity, terms=terms)
    assert "align" in refused(shop, lambda: shop.join(altered), RefusedError)
