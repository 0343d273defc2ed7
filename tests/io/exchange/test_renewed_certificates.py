"""Certificates that are replaced, removed or expire while a job runs: what counts is what is pinned now."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.error_sentence import error_sentence
from support.fault_injection import PATIENCE, ChainWorld, chain_message, make_chain_world, open_exchanges, wait_for
from support.raw_messages import parts_of, raw_client, send_raw
from support.unusual_certificates import PAST
from veilmeans.crypto.certificates import Identity, make_identity
from veilmeans.io.exchange import connections
from veilmeans.io.exchange.connections import close_exchange, load_identity, open_exchange, open_gateway
from veilmeans.io.exchange.exchange import Exchange
from veilmeans.io.files import fresh_files
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import CertificateError, PeerError, RefusedError

AT_SHOP = chain_message(sender="payco", to="shop")


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_LOOK", 0.05)
    monkeypatch.setattr(fresh_files, "_AGE", 0.05)


@pytest.fixture
def world(tmp_path: Path) -> ChainWorld:
    """Payco and shop, who keep a copy of each other's certificate each."""
    return with_copies(make_chain_world(tmp_path, "gateway"))


def with_copies(world: ChainWorld) -> ChainWorld:
    """Give each party copies of its peers' certificates, as they have in companies of their own."""
    for name, config in world.configs.items():
        for peer, endpoint in config.peers.items():
            copy = world.folder / name / f"pinned-{peer}.crt"
            copy.write_bytes(endpoint.certificate.read_bytes())
            config.peers[peer] = endpoint.model_copy(update={"certificate": copy})
    return world


@pytest.fixture
def paycos(world: ChainWorld) -> Iterator[Exchange]:
    """Payco's exchange, which has sent shop a message over a stream that is still open."""
    payco = world.configs["payco"]
    with open_gateway(world.configs["shop"]):
        exchange = open_exchange(payco)
        exchange.put_all([chain_message(sender="payco", to="shop", number=1)])
        yield exchange
        close_exchange(payco)


def pin_of(config: JobConfig, peer: str) -> Path:
    return config.peers[peer].certificate


def renew(config: JobConfig) -> Identity:
    """Replace a party's certificate and key."""
    identity = make_identity(config.party, 2)
    config.certificate.write_bytes(identity.certificate)
    config.key.write_bytes(identity.key)
    return identity


def sent(config: JobConfig, identity: Identity) -> bool:
    """True if a message reaches the gateway with this identity."""
    try:
        return send_raw(raw_client(config, identity), parts_of(chain_message())) == 1
    except Exception:
        return False


# A gateway.
def test_a_new_pin_counts_without_a_restart_and_the_old_one_no_more(world: ChainWorld) -> None:
    payco, old, new = world.configs["payco"], load_identity(world.configs["shop"]), make_identity("shop", 2)
    with open_gateway(payco) as gateway:
        assert sent(payco, old)
        assert not sent(payco, new)
        pin_of(payco, "shop").write_bytes(new.certificate)
        wait_for(lambda: sent(payco, new))
        assert not sent(payco, old)
        assert gateway.inbox.find(chain_message().key) is not None


@pytest.mark.parametrize(
    "change",
    [Path.unlink, lambda file: file.write_bytes(make_identity("shop", 2, PAST).certificate)],
    ids=["removed", "expired"],
)
def test_who_is_not_pinned_any_more_cannot_connect(world: ChainWorld, change: Callable[[Path], object]) -> None:
    payco, shop = world.configs["payco"], load_identity(world.configs["shop"])
    with open_gateway(payco):
        assert sent(payco, shop)
        change(pin_of(payco, "shop"))
        wait_for(lambda: "handshake" in refusal(payco, shop).lower() or "connect" in refusal(payco, shop).lower())


def refusal(config: JobConfig, identity: Identity) -> str:
    try:
        send_raw(raw_client(config, identity), parts_of(chain_message()))
    except Exception as error:
        return str(error)
    return ""


def test_a_party_s_own_new_certificate_is_shown_without_a_restart(world: ChainWorld) -> None:
    payco, shop = world.configs["payco"], load_identity(world.configs["shop"])
    with open_gateway(payco):
        renew(payco)
        wait_for(lambda: sent(payco, shop))


def test_a_certificate_without_its_key_is_not_shown(world: ChainWorld) -> None:
    payco, shop = world.configs["payco"], load_identity(world.configs["shop"])
    before, new = payco.certificate.read_bytes(), make_identity("payco", 2)
    with open_gateway(payco):
        payco.certificate.write_bytes(new.certificate)
        client = raw_client(payco.model_copy(update={"certificate": _file(world, before)}), shop)
        assert send_raw(client, parts_of(chain_message())) == 1
        payco.key.write_bytes(new.key)
        wait_for(lambda: sent(payco, shop))


def _file(world: ChainWorld, content: bytes) -> Path:
    file = world.folder / "payco-before.crt"
    file.write_bytes(content)
    return file


# A party that sends and waits.
NOT_PINNED_ANY_MORE = pytest.mark.parametrize(
    ("change", "why"),
    [
        (Path.unlink, "cannot be read"),
        (lambda file: file.write_bytes(make_identity("shop", 2, PAST).certificate), "expired on"),
    ],
    ids=["removed", "expired"],
)


@NOT_PINNED_ANY_MORE
def test_nothing_is_sent_to_a_peer_that_is_not_pinned_any_more(
    world: ChainWorld, paycos: Exchange, change: Callable[[Path], object], why: str
) -> None:
    """Not over the open stream either; and a message that has come is not read."""
    change(pin_of(world.configs["payco"], "shop"))
    assert why in error_sentence(lambda: paycos.put_all([AT_SHOP]), CertificateError)
    assert why in error_sentence(lambda: paycos.get(chain_message().key, PATIENCE), CertificateError)


def test_a_party_that_waits_notices_that_a_pin_was_removed(world: ChainWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    payco = world.configs["payco"]
    monkeypatch.setattr("veilmeans.io.exchange.flight_exchange.LONGEST_WAIT", 0.1)
    with open_gateway(payco), ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(open_exchange(payco).get, chain_message().key, PATIENCE)
        pin_of(payco, "shop").unlink()
        with pytest.raises(CertificateError, match="pinned-shop"):
            waiting.result(PATIENCE)
        close_exchange(payco)


@pytest.mark.parametrize("first", ["payco", "shop"])
def test_a_certificate_that_is_renewed_in_mid_run_ends_nothing(world: ChainWorld, paycos: Exchange, first: str) -> None:
    """Whoever replaces a file first: the message waits until both have."""
    payco, shop, old = world.configs["payco"], world.configs["shop"], world.configs["shop"].certificate.read_bytes()
    with ThreadPoolExecutor(1) as pool:
        new = renew(shop)
        if first == "payco":
            pin_of(payco, "shop").write_bytes(new.certificate)
        else:
            wait_for(lambda: not sent(shop.model_copy(update={"certificate": _old(world, old)}), load_identity(payco)))
        sending = pool.submit(paycos.put_all, [AT_SHOP])
        if first == "shop":
            pin_of(payco, "shop").write_bytes(new.certificate)
        sending.result(PATIENCE)
        paycos.flush()


def _old(world: ChainWorld, content: bytes) -> Path:
    file = world.folder / "shop-before.crt"
    file.write_bytes(content)
    return file


# Files.
@NOT_PINNED_ANY_MORE
def test_files_of_and_for_a_peer_that_is_not_pinned_any_more_are_refused(
    tmp_path: Path, change: Callable[[Path], object], why: str
) -> None:
    world = with_copies(make_chain_world(tmp_path, "files"))
    with open_exchanges(world) as exchanges, ThreadPoolExecutor(1) as pool:
        exchanges["shop"].put_all([chain_message()])
        assert exchanges["payco"].get(chain_message().key, PATIENCE).equals(chain_message().payload)
        waiting = pool.submit(exchanges["payco"].get, chain_message(number=1).key, PATIENCE)
        change(pin_of(world.configs["payco"], "shop"))
        with pytest.raises(CertificateError, match=why):
            waiting.result(PATIENCE)
        assert why in error_sentence(lambda: exchanges["payco"].get(chain_message().key, PATIENCE), CertificateError)
        assert why in error_sentence(lambda: exchanges["payco"].put_all([AT_SHOP]), CertificateError)


def test_files_are_encrypted_for_the_certificate_that_is_pinned_now(tmp_path: Path) -> None:
    world = with_copies(make_chain_world(tmp_path, "files"))
    payco, shop, key = world.configs["payco"], world.configs["shop"], chain_message(number=1).key
    with open_exchanges(world) as exchanges:
        exchanges["shop"].put_all([chain_message()])
        pin_of(payco, "shop").write_bytes(renew(shop).certificate)
        exchanges["shop"].put_all([chain_message(number=1)])
        assert exchanges["payco"].get(key, PATIENCE).equals(chain_message().payload)
        with pytest.raises(RefusedError, match="not made by shop"):  # it was encrypted with the old key
            exchanges["payco"].get(chain_message().key, PATIENCE)


def test_a_peer_that_does_not_pin_our_new_certificate_is_named_after_the_timeout(world: ChainWorld) -> None:
    payco, shop = world.configs["payco"], world.configs["shop"]
    short = payco.model_copy(update={"exchange": payco.exchange.model_copy(update={"timeout_s": 1.0})})
    with open_gateway(shop):
        exchange = open_exchange(short)
        exchange.put_all([chain_message(sender="payco", to="shop", number=1)])
        renew(payco)
        with pytest.raises((CertificateError, PeerError), match="shop"):
            exchange.put_all([AT_SHOP])
        close_exchange(short)
