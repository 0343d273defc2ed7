"""The ledger of what was opened of a party's data: an opening counts once, and none beyond the agreed number."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from support.error_sentence import error_sentence
from support.parties import TRIPLES, make_configs
from support.small_kmeans import job_of
from veilmeans.io.exchange.connections import load_identity
from veilmeans.io.ledgers.opening_ledger import OpeningLedger, all_ledgers, data_digest
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import HandshakeError, RefusedError, StorageError
from veilmeans.schemas.handshake_terms import POLICY, Terms
from veilmeans.transforms.auditing.signed_policies import keep_policies, signed_policy


@pytest.fixture
def configs(tmp_path: Path) -> dict[str, JobConfig]:
    made = make_configs(tmp_path, 2, kind="files", triples=TRIPLES, kmeans=job_of(2, rows=20))
    return {name: config.online() for name, config in made.items()}


def test_openings_are_counted_by_data_once_each_and_refused_beyond_the_limit(configs: dict[str, JobConfig]) -> None:
    payco = configs["payco"]
    ledger = OpeningLedger.of(payco, data_digest(payco, "rows"))
    other = OpeningLedger.of(payco, data_digest(payco, "other rows"))
    assert ledger.folder != other.folder
    for _ in range(2):  # a rerun
        ledger.check([("one", "a")], 2)
        ledger.record("one", "a", "train", {"centroids": ("payco",), "inertia": ()})
    ledger.check([("one", "b")], 2)
    ledger.record("one", "b", "reveal", {"assignments": ("payco", "shop")})
    refused = partial(error_sentence, lambda: ledger.check([("two", "a")], 2), RefusedError)
    assert "opened 2 times, now 1 more, and openings.limit is 2" in refused()
    ledger.check([("one", "a"), ("one", "b")], 1)  # what was opened already opens nothing new
    ledger.check([("two", "a")], None)
    other.check([("two", "a")], 1)
    assert "openings.limit is 1" in error_sentence(lambda: other.check([("two", "a"), ("three", "a")], 1), RefusedError)
    assert [(each.run, each.command, each.opened) for each in ledger.openings()] == [
        ("one", "train", {"centroids": ["payco"]}),
        ("one", "reveal", {"assignments": ["payco", "shop"]}),
    ]
    assert [each.data for each in all_ledgers(payco)] == [ledger.data]
    assert ledger.lines(2)[0].endswith("2 openings of at most 2")
    assert "centroids to payco" in "\n".join(ledger.lines(None))


def test_a_damaged_ledger_is_named_and_digests_are_keyed(configs: dict[str, JobConfig]) -> None:
    payco, shop = configs["payco"], configs["shop"]
    assert data_digest(payco, "rows") != data_digest(shop, "rows")
    ledger = OpeningLedger.of(payco, data_digest(payco, "rows"))
    ledger.record("one", "a", "train", {"centroids": ("payco",)})
    (ledger.folder / "one.a.json").write_text("{")
    assert "one.a.json" in error_sentence(ledger.openings, StorageError)


def with_reveal(config: JobConfig, **fields: object) -> JobConfig:
    job = config.required_kmeans
    return config.model_copy(update={"kmeans": job.model_copy(update={"reveal": job.reveal.model_copy(update=fields)})})


def test_a_policy_counts_as_signed_only_with_the_peers_own_signature_of_it(configs: dict[str, JobConfig]) -> None:
    payco, shop = configs["payco"], configs["shop"]
    signed = Terms({}, signed_policy(shop, "train"))
    assert signed_policy(shop, "train") == signed_policy(shop, "train")  # a rerun announces the same
    keep_policies(payco, "train", "run", {"shop": signed})
    kept = payco.run_folder.policy("run", "shop").read_text()
    assert signed.announced[POLICY] in kept
    assert load_identity(shop).certificate.decode().splitlines()[1] in kept
    other = with_reveal(payco, centroids=("payco",))
    forged = [
        (payco, "train", Terms({})),
        (payco, "train", replace(signed, announced={POLICY: "no hex"})),
        (payco, "train", Terms({}, signed_policy(payco, "train"))),
        (payco, "reveal", signed),
        (other, "train", signed),
        (payco.model_copy(update={"run": "later"}), "train", signed),
    ]
    for config, command, terms in forged:
        sentence = error_sentence(
            lambda c=config, k=command, t=terms: keep_policies(c, k, "other", {"shop": t}), HandshakeError
        )
        assert sentence.startswith("shop has not signed the reveal policy")
        assert not config.run_folder.policy("other", "shop").exists()
