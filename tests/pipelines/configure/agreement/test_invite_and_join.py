"""Invitations, replies and agreements: same words at all, and every wrong file refused with nothing written."""

import json
import re
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from support.companies import ADDRESS, Company, changed_file, refused, resigned_file, several_companies, two_companies
from support.error_sentence import error_sentence
from support.parties import file_mode
from veilmeans.crypto.certificates import make_identity
from veilmeans.io.exchange.connections import load_peer_certificates
from veilmeans.pipelines.configure.agreement.shared_terms import terms_of
from veilmeans.pipelines.configure.agreement.signed_file import Member, read_signed
from veilmeans.schemas.errors import CertificateError, ConfigError, InputError

YESTERDAY = datetime.now(UTC) - timedelta(days=1)


@pytest.fixture
def payco(tmp_path: Path) -> Company:
    return Company(tmp_path, "payco")


@pytest.fixture
def shop(tmp_path: Path) -> Company:
    return Company(tmp_path, "shop")


# What they agree on.
def test_two_companies_have_the_same_terms_and_the_same_six_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    payco, shop = two_companies(tmp_path)
    printed = re.findall(r"^    ((?:[a-z]{5} ){5}[a-z]{5})$", capsys.readouterr().out, re.MULTILINE)
    assert printed == [payco.words] * 2 == [shop.words] * 2
    assert terms_of(payco.config) == terms_of(shop.config)
    assert payco.config.required_kmeans.features == {"payco": 2, "shop": 4}
    assert (payco.config.listen, payco.config.peers["shop"].address) == ("0.0.0.0:7101", "shop.example:7102")
    assert load_peer_certificates(payco.config) == {"shop": shop.identity.certificate}
    assert load_peer_certificates(shop.config) == {"payco": payco.identity.certificate}


@pytest.mark.parametrize("names", [("payco", "shop", "dealer"), ("payco", "shop", "bank"), ("a", "b", "c.d", "dealer")])
def test_several_companies_agree(tmp_path: Path, names: tuple[str, ...]) -> None:
    companies = several_companies(tmp_path, names, layout="horizontal" if "bank" in names else "vertical", columns=4)
    assert len({each.words for each in companies}) == 1
    assert all(terms_of(each.config) == terms_of(companies[0].config) for each in companies)
    for each in companies:
        assert load_peer_certificates(each.config) == {
            other.name: other.identity.certificate for other in companies if other is not each
        }


def test_the_horizontal_layout_has_rows_of_each(payco: Company, shop: Company) -> None:
    payco.accept(shop.join(payco.invite("shop", layout="horizontal"), rows=7, columns=None))
    assert payco.config.required_kmeans.rows == {"payco": 12, "shop": 7}
    assert payco.words == shop.words


def test_terms_that_the_template_does_not_have_are_sent_too(payco: Company, shop: Company) -> None:
    payco.invite("shop")
    text = payco.config_file.read_text()
    payco.config_file.write_text(
        text.replace("  runs: 1", "  runs: 3\n  iterations: 4") + "  drop_bits: 2\nbeam: {rows_per_shard: 7}\n"
    )
    payco.accept(shop.join(payco.invite("shop")))
    assert shop.config.required_triples.runs == 3
    assert (shop.config.beam.rows_per_shard, shop.config.required_kmeans.drop_bits) == (7, 2)
    assert payco.words == shop.words


def test_data_that_are_there_give_the_size_and_the_categories(
    payco: Company, shop: Company, capsys: pytest.CaptureFixture[str]
) -> None:
    (payco.folder / "data.csv").write_text("id,card,x\n" + "".join(f"{i},{'ab'[i % 2]},{i}\n" for i in range(8)))
    invitation = payco.invite("shop", rows=None, columns=None)
    assert "payco: 8 rows, 3 columns (text as categories: card)" in capsys.readouterr().out
    assert payco.config.required_kmeans.one_hot == ("card",)
    (shop.folder / "data.csv").write_text("id,y\n" + "".join(f"{i},{i}\n" for i in range(7)))
    assert "kmeans.rows is 7 here and 8 in the invitation" in error_sentence(
        lambda: shop.join(invitation, columns=None), InputError
    )
    (shop.folder / "data.csv").write_text("id,y\n" + "".join(f"{i},{i}\n" for i in range(8)))
    payco.accept(shop.join(invitation, columns=None))  # after a mistake in the data, the same command works
    assert payco.config.required_kmeans.features == shop.config.required_kmeans.features == {"payco": 3, "shop": 1}


def test_files_hold_no_secret_and_secrets_stay_0600(tmp_path: Path) -> None:
    for company in several_companies(tmp_path, ("payco", "shop", "dealer")):
        keys = company.folder / "keys"
        secrets = [company.identity.key, (keys / f"{company.name}.seed").read_bytes()]
        sent = b"".join(file.read_bytes() for file in company.folder.rglob("*.json"))
        assert not any(secret in sent or secret.hex().encode() in sent for secret in secrets)
        assert b"PRIVATE" not in sent
        assert str(company.folder).encode() not in sent
        assert {file_mode(file) for file in keys.iterdir() if file.suffix != ".crt"} == {0o600}


def test_nothing_private_is_in_an_invitation(payco: Company) -> None:
    payco.invite("shop")
    text = payco.config_file.read_text()
    payco.config_file.write_text(text.replace("  id: id", "  id: passport\n  categories: {card: [gold, lead]}"))
    sent = payco.invite("shop").read_text()
    assert not re.search("passport|gold|data.csv|keys/|storage|0.0.0.0", sent)


def test_a_draft_can_run_nothing(payco: Company) -> None:
    payco.invite("shop")
    assert "peers/shop.crt" in error_sentence(lambda: load_peer_certificates(payco.config), CertificateError)


# Refusals at the inviter.
def test_an_altered_reply_is_refused(payco: Company, shop: Company) -> None:
    reply = shop.join(payco.invite("shop"))
    altered = changed_file(reply, lambda content: content["body"]["member"].update(address="evil.example:1"))
    assert "altered on the way" in refused(payco, lambda: payco.accept(altered))
    certificate = make_identity("shop", 3).certificate.decode()
    altered = changed_file(reply, lambda content: content["body"]["member"].update(certificate=certificate))
    assert "altered on the way" in refused(payco, lambda: payco.accept(altered))
    payco.accept(reply)


def test_a_reply_to_another_invitation_is_refused(payco: Company, shop: Company, tmp_path: Path) -> None:
    early = shop.join(payco.invite("shop"))
    payco.invite("shop")
    assert "another invitation" in refused(payco, lambda: payco.accept(early))
    (tmp_path / "other").mkdir()
    stranger = Company(tmp_path / "other", "payco")
    foreign = Company(tmp_path / "other", "shop").join(stranger.invite("shop"))
    assert "another invitation" in refused(payco, lambda: payco.accept(foreign))


def test_a_reply_to_an_altered_invitation_is_refused(payco: Company, shop: Company) -> None:
    """A man in the middle who sends shop another certificate must sign; then the digest in the reply differs."""
    invitation = payco.invite("shop")
    attacker = make_identity("payco", 3)
    member = Member(certificate=attacker.certificate.decode(), address=ADDRESS, number=2)
    reply = shop.join(resigned_file(invitation, attacker, member=member))
    assert "that was altered" in refused(payco, lambda: payco.accept(reply))


def test_a_man_in_the_middle_of_both_ways_changes_the_words(payco: Company, shop: Company) -> None:
    invitation = payco.invite("shop")
    attacker, other = make_identity("payco", 3), make_identity("shop", 3)
    member = Member(certificate=attacker.certificate.decode(), address=ADDRESS, number=2)
    reply = shop.join(resigned_file(invitation, attacker, member=member))
    member = Member(certificate=other.certificate.decode(), address=ADDRESS, number=4)
    payco.accept(resigned_file(reply, other, member=member, digest=read_signed(invitation).digest))
    assert payco.words != shop.words


def test_a_reply_after_the_date_is_refused(payco: Company, shop: Company) -> None:
    reply = shop.join(payco.invite("shop"))
    identifier = (payco.folder / "agreements/invitation").read_text().strip()
    kept = payco.folder / "agreements" / identifier / "invitation.json"
    expired = resigned_file(kept, payco.identity, expires=YESTERDAY)
    kept.write_text(expired.read_text())
    late = resigned_file(reply, shop.identity, digest=read_signed(kept).digest)
    assert "expired on" in refused(payco, lambda: payco.accept(late))


def test_a_reply_from_a_stranger_is_refused(payco: Company, shop: Company) -> None:
    reply = shop.join(payco.invite("shop"))
    stranger = make_identity("bank", 3)
    member = Member(certificate=stranger.certificate.decode(), address=ADDRESS, number=4)
    forged = resigned_file(reply, stranger, sender="bank", member=member)
    assert "from bank, who is not invited: shop" in refused(payco, lambda: payco.accept(forged))
    forged = resigned_file(reply, stranger, member=member)
    assert "made out to 'bank', not to 'shop'" in refused(payco, lambda: payco.accept(forged))
    forged = resigned_file(reply, stranger)
    assert "not signed by the certificate of shop" in refused(payco, lambda: payco.accept(forged))


def test_a_reply_counts_once(payco: Company, shop: Company) -> None:
    reply = shop.join(payco.invite("shop"))
    payco.accept(reply)
    assert "was used already" in refused(payco, lambda: payco.accept(reply))
    other = make_identity("shop", 3)
    member = Member(certificate=other.certificate.decode(), address=ADDRESS, number=4)
    second = resigned_file(reply, other, member=member)
    assert "was used already" in refused(payco, lambda: payco.accept(second))


def test_a_reply_without_a_size_is_refused(payco: Company, shop: Company) -> None:
    reply = shop.join(payco.invite("shop"))
    member = Member(certificate=shop.identity.certificate.decode(), address=ADDRESS)
    assert "must state its size" in refused(
        payco, lambda: payco.accept(resigned_file(reply, shop.identity, member=member))
    )


def test_terms_that_were_changed_after_the_invitation_are_refused(payco: Company, shop: Company) -> None:
    reply = shop.join(payco.invite("shop"))
    text = payco.config_file.read_text()
    payco.config_file.write_text(text.replace("clusters: 3", "clusters: 4"))
    assert "kmeans.clusters in" in refused(payco, lambda: payco.accept(reply), ConfigError)
    payco.config_file.write_text(text)
    payco.accept(reply)


# Refusals at those who are invited.
def test_an_altered_or_expired_invitation_is_refused(payco: Company, shop: Company) -> None:
    invitation = payco.invite("shop")
    altered = changed_file(invitation, lambda content: content["body"]["terms"].update({"kmeans.clusters": 2}))
    assert "altered on the way" in refused(shop, lambda: shop.join(altered))
    expired = resigned_file(invitation, payco.identity, expires=YESTERDAY)
    assert "expired on" in refused(shop, lambda: shop.join(expired))
    first = datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=23)))
    expired = resigned_file(invitation, payco.identity, expires=first)
    assert "expired on 0001-01-01 00:00+23:00" in refused(shop, lambda: shop.join(expired))
    assert shop.everything() == {}


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("kmeans.clusters", 0, "kmeans.clusters"),
        ("kmeans.clusters", "3", "kmeans.clusters"),
        ("kmeans.clusters", 100, "12 rows"),
        ("kmeans.tol", [1], "kmeans.tol"),
        ("kmeans.layout", "diagonal", "kmeans.layout"),
        ("kmeans.layout", ["vertical"], "kmeans.layout"),
        ("kmeans.init.seed", "x: [", "kmeans.init.seed"),
        ("kmeans.reveal.assignments", ["payco", "mallory"], "mallory"),
        ("kmeans.data", "/etc/passwd", "'kmeans.data', which is no field"),
        ("key", "/tmp/key", "'key', which is no field"),
        ("beam.options", ["--x"], "'beam.options', which is no field"),
        ("\x1b[2J", 1, "'\\\\x1b[2J', which is no field"),
        ("kmeans.features", {"payco": 1, "shop": 9}, "kmeans.features"),
        ("parties", ["payco", "shop", "../x"], "must be names"),
        ("parties", ["payco", "payco"], "taken twice"),
        ("parties", ["bank", "shop"], "not one of them"),
        ("parties", "payco", "must be names"),
        ("parties", [["payco"]], "must be names"),
        ("dealer", "shop", "taken twice"),
        ("dealer", 3, "must be names"),
        ("run", "store-x", "run"),
        ("run", "../../x", "run"),
        ("triples.store", "a/b", "triples.store"),
    ],
)
def test_terms_that_the_schema_refuses(payco: Company, shop: Company, field: str, value: Any, why: str) -> None:
    invitation = payco.invite("shop")
    terms = {**json.loads(invitation.read_text())["body"]["terms"], field: value}
    sentence = refused(shop, lambda: shop.join(resigned_file(invitation, payco.identity, terms=terms)))
    assert "signed-payco-invitation.json" in sentence
    assert why in sentence
    assert sentence.isprintable()


def test_an_invitation_must_have_all_terms(payco: Company, shop: Company) -> None:
    invitation = payco.invite("shop")
    terms = json.loads(invitation.read_text())["body"]["terms"]
    del terms["kmeans.max_iter"]
    short = resigned_file(invitation, payco.identity, terms={**terms})
    assert "kmeans.max_iter" in refused(shop, lambda: shop.join(short))


def test_a_name_that_is_taken_or_not_invited_is_refused(payco: Company, shop: Company) -> None:
    assert "taken twice" in refused(payco, lambda: payco.invite("payco"), ConfigError)
    assert "taken twice" in refused(payco, lambda: payco.invite("shop", dealer="shop"), ConfigError)
    invitation = payco.invite("shop,bank")
    assert "payco is taken" in refused(shop, lambda: shop.join(invitation, name="payco"), ConfigError)
    assert "'carrier' is not invited; shop and bank" in refused(
        shop, lambda: shop.join(invitation, name="carrier"), ConfigError
    )
    assert "--name is needed" in refused(shop, lambda: shop.join(invitation, name=None), ConfigError)
    shop.join(invitation)
    assert "was used already" in refused(shop, lambda: shop.join(invitation))
    again = payco.invite("shop,bank")
    assert "the configuration of shop" in refused(shop, lambda: shop.join(again, name="bank"), ConfigError)


def test_an_agreement_must_be_of_the_inviter_and_unchanged(tmp_path: Path) -> None:
    payco, shop, bank = (Company(tmp_path, name) for name in ("payco", "shop", "bank"))
    invitation = payco.invite("shop,bank")
    for each in (shop, bank):
        payco.accept(each.join(invitation))
    agreement = payco.sent("agreement")
    members = dict(read_signed(agreement).body.members)  # type: ignore[union-attr]
    forged = resigned_file(agreement, bank.identity)
    assert "not signed by the certificate of payco" in refused(shop, lambda: shop.accept(forged))
    forged = resigned_file(agreement, bank.identity, sender="bank")
    assert "payco has invited" in refused(shop, lambda: shop.accept(forged))
    other = members["shop"].model_copy(update={"number": 5})
    forged = resigned_file(agreement, payco.identity, members={**members, "shop": other})
    assert "other things of shop" in refused(shop, lambda: shop.accept(forged))
    forged = resigned_file(agreement, payco.identity, members={**members, "carrier": other})
    assert "other members" in refused(shop, lambda: shop.accept(forged))
    forged = resigned_file(agreement, payco.identity, expires=YESTERDAY)
    assert "expired on" in refused(shop, lambda: shop.accept(forged))
    shop.accept(agreement)
    assert "was used already" in refused(shop, lambda: shop.accept(agreement))
    assert "nobody replied here" in refused(payco, lambda: payco.accept(agreement))


def test_an_inviter_that_shows_each_another_certificate_changes_the_words(tmp_path: Path) -> None:
    """payco gives shop a certificate of bank that is payco's own: shop's words differ from bank's."""
    payco, shop, bank = (Company(tmp_path, name) for name in ("payco", "shop", "bank"))
    invitation = payco.invite("shop,bank")
    for each in (shop, bank):
        payco.accept(each.join(invitation))
    agreement = payco.sent("agreement")
    bank.accept(agreement)
    members = dict(read_signed(agreement).body.members)  # type: ignore[union-attr]
    own = make_identity("bank", 3).certificate.decode()
    members["bank"] = members["bank"].model_copy(update={"certificate": own})
    shop.accept(resigned_file(agreement, payco.identity, members=members))
    assert shop.words != bank.words


def test_a_kind_at_the_wrong_place_is_refused(payco: Company, shop: Company) -> None:
    invitation = payco.invite("shop")
    assert "is an invitation: `veilmeans join" in refused(payco, lambda: payco.accept(invitation), ConfigError)
    assert "only a proposal can be refused" in refused(shop, lambda: shop.refuse(invitation), ConfigError)
    assert "--address is needed" in refused(shop, lambda: shop.join(invitation, address=None), ConfigError)
    assert "must be host:port" in refused(shop, lambda: shop.join(invitation, address="shop"), ConfigError)


def test_options_that_contradict_the_configuration_are_refused(payco: Company) -> None:
    payco.invite("shop")
    assert "--clusters differs" in refused(payco, lambda: payco.invite("shop", clusters=4), ConfigError)
    assert "--with differs" in refused(payco, lambda: payco.invite("bank"), ConfigError)


def test_join_takes_a_reply_like_accept(payco: Company, shop: Company) -> None:
    payco.join(shop.join(payco.invite("shop")))
    assert payco.words == shop.words
