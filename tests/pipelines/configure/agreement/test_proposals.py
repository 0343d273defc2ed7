"""Changes of what was agreed: by consent of all, or not at all."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from support.companies import Company, changed_file, refused, resigned_file, several_companies, two_companies
from support.error_sentence import error_sentence
from veilmeans.crypto.certificates import make_identity
from veilmeans.io.exchange.connections import load_peer_certificates
from veilmeans.pipelines.cli import agreement_commands as commands
from veilmeans.pipelines.configure.agreement.shared_terms import terms_of
from veilmeans.pipelines.configure.config_advice import advise
from veilmeans.pipelines.configure.party_keys import make_keys
from veilmeans.schemas.errors import CertificateError, ConfigError, HandshakeError

YESTERDAY = datetime.now(UTC) - timedelta(days=1)
Pair = tuple[Company, Company]


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return two_companies(tmp_path)


def test_two_companies_change_their_terms(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    payco, shop = pair
    before = payco.words
    proposal = payco.propose("kmeans.clusters=4", "kmeans.features.payco=3", "kmeans.reveal.centroids=[payco]")
    assert payco.words == before
    capsys.readouterr()
    answer = shop.answer(proposal)
    shown = capsys.readouterr().out
    assert all(each in shown for each in ("kmeans.clusters", "{payco: 2, shop: 4}", "{payco: 3, shop: 4}"))
    assert "kmeans.tol" not in shown
    payco.accept(answer)
    assert payco.words == shop.words != before
    for each in pair:
        job = each.config.required_kmeans
        assert (job.clusters, job.features, job.reveal.centroids) == (4, {"payco": 3, "shop": 4}, ("payco",))


def test_a_refused_proposal_changes_nothing(pair: Pair) -> None:
    payco, shop = pair
    before = payco.words, payco.config_file.read_text(), shop.config_file.read_text()
    proposal = payco.propose("kmeans.clusters=4")
    answer = shop.refuse(proposal)
    assert "shop refuses the proposal" in error_sentence(lambda: payco.accept(answer), HandshakeError)
    assert (payco.words, payco.config_file.read_text(), shop.config_file.read_text()) == before
    assert "was used already" in refused(shop, lambda: shop.accept(proposal))
    consent = resigned_file(answer, shop.identity, accepted=True)
    assert "was used already" in refused(payco, lambda: payco.accept(consent))


def test_three_companies_change_nothing_before_all_have_accepted(tmp_path: Path) -> None:
    payco, shop, dealer = companies = several_companies(tmp_path, ("payco", "shop", "dealer"))
    before = payco.words
    proposal = shop.propose("kmeans.clusters=4", "run=second", "triples.store=second")
    answers = [each.answer(proposal) for each in (payco, dealer)]
    shop.accept(answers[0])
    assert {each.words for each in companies} == {before}
    decision = shop.sent("decision")
    assert not decision.exists()
    shop.accept(answers[1])
    for each in (payco, dealer):
        each.accept(decision)
        assert "was used already" in refused(each, lambda each=each: each.accept(decision))
    assert {each.words for each in companies} == {payco.words} != {before}
    assert all(terms_of(each.config)["kmeans.clusters"] == 4 for each in companies)


def test_a_decision_needs_our_own_consent(tmp_path: Path) -> None:
    payco, shop, bank = several_companies(tmp_path)
    proposal = payco.propose("kmeans.clusters=4")
    for each in (shop, bank):
        payco.accept(each.answer(proposal))
    decision, first = payco.sent("decision"), payco.sent("decision").read_text()
    shop.accept(decision)
    bank.accept(decision)
    proposal = payco.propose("kmeans.clusters=5")
    bank.refuse(proposal)
    forged = resigned_file(decision, payco.identity, proposal=_id(proposal), digest="0" * 64)
    assert "not accepted here" in refused(shop, lambda: shop.accept(forged))
    assert "not accepted here" in refused(bank, lambda: bank.accept(forged))
    shop.answer(proposal)
    assert "another proposal" in refused(shop, lambda: shop.accept(forged))
    decision.write_text(first)
    assert "was used already" in refused(shop, lambda: shop.accept(decision))


def _id(file: Path) -> Any:
    from veilmeans.pipelines.configure.agreement.signed_file import Proposal, read_signed

    body = read_signed(file).body
    assert isinstance(body, Proposal)
    return body.id


def test_a_new_certificate_travels_as_a_proposal_signed_with_the_old_key(pair: Pair) -> None:
    payco, shop = pair
    old, seed = payco.identity, payco.config.seed.read_bytes()
    make_keys("payco", payco.folder / "keys-2", 30)
    proposal = payco.propose(keys=payco.folder / "keys-2", address="new.example:7105")
    payco.accept(shop.answer(proposal))
    assert payco.identity.certificate != old.certificate
    assert "certificate: keys-2/payco.crt" in payco.config_file.read_text()
    assert load_peer_certificates(shop.config) == {"payco": payco.identity.certificate}
    assert shop.config.peers["payco"].address == "new.example:7105"
    assert payco.words == shop.words
    assert payco.config.seed.read_bytes() == seed
    late = resigned_file(payco.propose("kmeans.clusters=4"), old)
    assert "not signed by the certificate of payco" in refused(shop, lambda: shop.accept(late))


def test_a_certificate_of_three_companies_is_renewed(tmp_path: Path) -> None:
    payco, shop, bank = several_companies(tmp_path)
    make_keys("payco", payco.folder / "keys-2", 30)
    proposal = payco.propose(keys=payco.folder / "keys-2")
    for each in (shop, bank):
        payco.accept(each.answer(proposal))
    for each in (shop, bank):
        each.accept(payco.sent("decision"))
    assert payco.words == shop.words == bank.words


# Refusals.
def test_proposals_of_others_are_refused(pair: Pair) -> None:
    payco, shop = pair
    proposal = payco.propose("kmeans.clusters=4")
    altered = changed_file(proposal, lambda content: content["body"]["changes"].update({"kmeans.clusters": 9}))
    assert "altered on the way" in refused(shop, lambda: shop.accept(altered))
    forged = resigned_file(proposal, make_identity("payco", 3))
    assert "not signed by the certificate of payco" in refused(shop, lambda: shop.accept(forged))
    forged = resigned_file(proposal, make_identity("bank", 3), sender="bank")
    assert "from bank, who is not a member here: payco" in refused(shop, lambda: shop.accept(forged))
    expired = resigned_file(proposal, payco.identity, expires=YESTERDAY)
    assert "expired on" in refused(shop, lambda: shop.accept(expired))
    assert "expired on" in refused(shop, lambda: shop.refuse(expired))
    assert "from payco, who is not a member here" in refused(payco, lambda: payco.accept(proposal))


def test_an_old_proposal_cannot_be_replayed(pair: Pair) -> None:
    payco, shop = pair
    there = payco.propose("kmeans.clusters=4")
    old = there.read_text()
    payco.accept(shop.answer(there))
    payco.accept(shop.answer(payco.propose("kmeans.clusters=3")))  # the terms are as they were before the first
    there.write_text(old)
    assert "was used already" in refused(shop, lambda: shop.accept(there))


def test_a_proposal_for_other_terms_is_refused(pair: Pair) -> None:
    payco, shop = pair
    first = payco.propose("kmeans.clusters=4")
    kept = first.with_name("first.json")
    kept.write_text(first.read_text())
    payco.accept(shop.answer(payco.propose("kmeans.clusters=2")))
    assert "other terms than those here" in refused(shop, lambda: shop.accept(kept))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"kmeans.clusters": 0}, "kmeans.clusters"),
        ({"kmeans.clusters": "4"}, "kmeans.clusters"),
        ({"kmeans.data": "/etc/passwd"}, "no field that members agree on"),
        ({"storage": "/"}, "no field that members agree on"),
        ({"peers.payco.certificate": "/x"}, "no field that members agree on"),
        ({"parties": ["shop", "mallory"]}, "not valid here"),
        ({"dealer": "mallory"}, "not valid here"),
    ],
)
def test_changes_that_the_schema_refuses(pair: Pair, changes: dict[str, Any], why: str) -> None:
    payco, shop = pair
    forged = resigned_file(payco.propose("kmeans.clusters=4"), payco.identity, changes=changes)
    assert why in refused(shop, lambda: shop.accept(forged))


def test_a_certificate_of_another_name_is_refused(pair: Pair) -> None:
    payco, shop = pair
    other = make_identity("shop", 3).certificate.decode()
    forged = resigned_file(payco.propose("kmeans.clusters=4"), payco.identity, certificate=other)
    assert "made out to 'shop'" in refused(shop, lambda: shop.accept(forged))


def test_answers_of_others_and_to_others_are_refused(pair: Pair) -> None:
    payco, shop = pair
    proposal = payco.propose("kmeans.clusters=4")
    answer = shop.answer(proposal)
    forged = resigned_file(answer, payco.identity)
    assert "not signed by the certificate of shop" in refused(payco, lambda: payco.accept(forged))
    assert "not made here" in refused(
        payco, lambda: payco.accept(resigned_file(answer, shop.identity, proposal="0" * 32))
    )
    assert "another proposal than ours" in refused(
        payco, lambda: payco.accept(resigned_file(answer, shop.identity, digest="0" * 64))
    )
    payco.accept(answer)
    assert "was used already" in refused(payco, lambda: payco.accept(answer))


def test_what_can_be_proposed(pair: Pair) -> None:
    payco, shop = pair
    assert "kmeans.data is not agreed" in refused(payco, lambda: payco.propose("kmeans.data=x.csv"), ConfigError)
    assert "nothing would change" in refused(payco, lambda: payco.propose("kmeans.clusters=3"), ConfigError)
    assert "kmeans.clusters" in refused(payco, lambda: payco.propose("kmeans.clusters=0"), ConfigError)
    assert "must be host:port" in refused(payco, lambda: payco.propose(address="x"), ConfigError)
    assert "keys-9" in refused(payco, lambda: payco.propose(keys=payco.folder / "keys-9"), CertificateError)
    payco.config.run_folder.path.mkdir(parents=True)
    assert "run=first-2 triples.store=first-2" in refused(
        payco, lambda: payco.propose("kmeans.clusters=4"), ConfigError
    )
    payco.accept(shop.answer(payco.propose("kmeans.clusters=4", "run=first-2", "triples.store=first-2")))
    assert payco.words == shop.words


def test_without_consent_nothing_is_written(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    payco, shop = pair
    proposal = payco.propose("kmeans.clusters=4")
    monkeypatch.setattr(commands.typer, "confirm", lambda _: False)
    assert "no consent" in refused(shop, lambda: commands.accept(proposal, config=shop.config_file), ConfigError)


def test_data_of_another_size_are_proposed(pair: Pair) -> None:
    payco, _ = pair
    (payco.folder / "data.csv").write_text("id,x\n" + "".join(f"{i},{i}\n" for i in range(9)))
    text = advise(payco.config, payco.config_file).text()
    assert text.endswith(f"veilmeans propose --config {payco.config_file} kmeans.rows=9 kmeans.features.payco=1")
