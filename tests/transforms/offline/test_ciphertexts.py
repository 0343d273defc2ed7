"""The offline phase of the homomorphic engine: keys and ciphertexts in a store, and where they never are.

A dealer and two parties make a store in this process, and train with it; nobody drops a message.
"""

import json
import logging
import pickle
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from support.fixed_values import fixed_key
from support.in_process_run import blobs, keep_messages, tables, together
from support.parties import Board, in_parallel, make_configs, mode_of
from support.train_world import BOTH, DEALER, World, changed_config
from veilmeans.crypto.he import scheme as he
from veilmeans.crypto.he.product_parameters import SchemeParameters
from veilmeans.io.exchange.exchange import Outgoing
from veilmeans.io.storage.he_keyring import Keyring, keep_peer, load_keyring, make_own
from veilmeans.io.storage.run_report import RunReport
from veilmeans.io.storage.triple_store import TripleStore
from veilmeans.pipelines import offline
from veilmeans.pipelines.offline import exchange_keys, run_offline
from veilmeans.pipelines.session.kmeans_from_config import store_requirements
from veilmeans.pipelines.session.triple_claim import open_store
from veilmeans.pipelines.train import run_train
from veilmeans.schemas.address import Address
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import ConfigError, RefusedError, StorageError
from veilmeans.schemas.message import MessageKey
from veilmeans.schemas.party import Party
from veilmeans.transforms.rounds.he_operations import HEContext, HEOperations, Tables
from veilmeans.transforms.rounds.party_context import PartyContext

ROWS, WIDTH = 6, 4
AGREED = SchemeParameters("okamoto-uchiyama", 1024)
SECRETS = ("cipher.key", "cipher.seed")


def make(folder: Path) -> World:
    """Two parties with two columns each, who use `he` for all products."""
    parts = tables(blobs(ROWS, WIDTH), ["a", "b", "c", "d"], [2], axis=1)
    features = dict.fromkeys(BOTH, 2)
    job = {"layout": "vertical", "rows": ROWS, "features": features, "clusters": 2, "max_iter": 1, "products": "he"}
    configs = make_configs(folder, dealer=DEALER, triples={"store": "store"}, kmeans=job)
    for name, part in zip(BOTH, parts, strict=True):
        file = folder / name / "data.parquet"
        pa.parquet.write_table(part, file)
        configs[name] = changed_config(configs[name], {"kmeans": {"data": str(file)}})
    together(run_offline, configs)
    return World(folder, configs)


@dataclass(frozen=True)
class Made:
    """A world with a store that nobody has used, one after a run, and what was logged all the while."""

    new: World
    used: World
    log: str


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder, lines, ours = tmp_path_factory.mktemp("ciphers"), Lines(), logging.getLogger("veilmeans")
    before = ours.level
    ours.addHandler(lines)
    ours.setLevel(logging.DEBUG)
    with pytest.MonkeyPatch.context() as patch:
        keep_messages(patch)
        patch.setattr(offline, "_forget_seeds", lambda _: None)  # as before the store is complete everywhere
        new = make(folder / "new")
        used = new.copied(folder / "used")
        together(run_train, {name: used.configs[name] for name in BOTH})
    ours.removeHandler(lines)
    ours.setLevel(before)
    return Made(new, used, "\n".join(lines.lines))


def store(world: World, name: str) -> Path:
    return world.configs[name].store_folder


def keyring(world: World, name: str) -> Keyring:
    return load_keyring(store(world, name), world.configs[name].me)


# What is in a store.
def test_secrets_are_for_their_owner_alone_and_keys_are_json(made: Made) -> None:
    for name in BOTH:
        folder = store(made.new, name)
        assert {mode_of(folder / file) for file in SECRETS} == {0o600}
        key = json.loads((folder / "cipher.key").read_text())
        assert (key["scheme"], key["bits"], set(key)) == (
            "okamoto-uchiyama",
            2048,
            {"scheme", "bits", "p", "q", "t", "g"},
        )
        assert len((folder / "cipher.seed").read_bytes()) == 32


def test_each_keeps_the_others_public_key_and_no_more_of_it(made: Made) -> None:
    for i, (name, peer) in enumerate((BOTH, BOTH[::-1])):
        kept = json.loads((store(made.new, name) / f"cipher.{peer}.pub").read_text())
        assert kept == keyring(made.new, peer).own.public.to_json()
        assert set(kept) == {"scheme", "bits", "n", "g"}
        assert keyring(made.new, name).public(1 - i) == keyring(made.new, peer).own.public
    assert not list(made.new.configs[DEALER].storage.rglob("cipher*"))


def test_no_two_parties_and_no_two_stores_share_a_key_or_a_seed(made: Made, tmp_path: Path) -> None:
    """Another store of the same two, whose first one stays as it is."""
    other = made.new.copied(tmp_path / "world", triples={"store": "november"})
    before = {name: contents(store(made.new.copied(tmp_path / "old"), name)) for name in BOTH}
    together(run_offline, other.configs)
    rings = [keyring(world, name) for world in (made.new, other) for name in BOTH]
    assert len({ring.seed for ring in rings}) == len({ring.own.public.modulus for ring in rings}) == 4
    assert {name: contents(store(made.new, name)) for name in BOTH} == before
    files = [contents(store(world, name) / "ciphers") for world in (made.new, other) for name in BOTH]
    assert len({content for each in files for content in each.values()}) == sum(map(len, files)) == 4


def test_offline_again_keeps_the_keys_and_makes_the_same_bytes(made: Made, tmp_path: Path) -> None:
    """As after a crash before the store was complete, in which some ciphertexts were lost."""
    world = made.new.copied(tmp_path / "world")
    before = {name: contents(store(world, name)) for name in BOTH}
    for config in world.configs.values():
        (config.offline().run_folder / "farewell").unlink()
        shutil.rmtree(config.storage / "inbox" / config.offline().run, ignore_errors=True)
    for name in BOTH:
        (store(world, name) / "manifest.json").unlink()
        (store(world, name) / "ciphers/0/0/0.arrow").unlink()
    together(run_offline, world.configs)
    assert {name: contents(store(world, name)) for name in BOTH} == before


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def test_the_ciphertexts_of_a_store_are_counted_and_timed_by_the_stage_that_uses_them(made: Made) -> None:
    for name in BOTH:
        config = made.new.configs[name]
        stages = RunReport(config.offline().run_folder).content["stages"]
        blindings = store_requirements(config).ciphertext_needs(0, 0)
        mine = {
            stage: sum(each.count for each in asked if each.maker == config.me.index)
            for stage, asked in blindings.items()
        }
        assert {stage: each["ciphertexts"] for stage, each in stages.items() if "ciphertexts" in each} == mine
        assert all(stages[stage]["computed_us"] > 0 for stage in mine)
        assert sum(mine.values()) > 0


# Damage.
def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-5])


def text(content: str, file: Path) -> None:
    file.write_text(content)


def without_a_field(file: Path) -> None:
    key = json.loads(file.read_text())
    del key["g"]
    file.write_text(json.dumps(key))


def one_more(file: Path) -> None:
    key = json.loads(file.read_text())
    name = "p" if "p" in key else "n"
    file.write_text(json.dumps({**key, name: f"{int(key[name], 16) + 1:x}"}))


DAMAGE: dict[str, Callable[[Path], None]] = {
    "missing": Path.unlink,
    "cut short": cut_short,
    "empty": partial(text, ""),
    "a list": partial(text, "[]"),
    "a number": partial(text, "7"),
    "without g": without_a_field,
    "another number": one_more,
}
CASES = [(file, how) for file in ("cipher.key", "cipher.shop.pub") for how in DAMAGE]
CASES += [("cipher.seed", how) for how in ("missing", "cut short", "empty")]


@pytest.mark.parametrize(("file", "how"), CASES)
def test_a_damaged_or_missing_key_is_told_before_anything_is_sent(
    made: Made, tmp_path: Path, file: str, how: str
) -> None:
    world = made.new.copied(tmp_path / "world")
    config = world.configs["payco"]
    path = config.store_folder / file
    DAMAGE[how](path)
    with pytest.raises(StorageError) as raised:
        run_train(config)
    said = f"the key {path} is missing or damaged: make the store again with `veilmeans offline`"
    assert raised.value.sentence == said
    assert not config.run_folder.exists() or not list(config.run_folder.rglob("handshake*"))


def test_a_key_that_others_may_read_is_refused(made: Made, tmp_path: Path) -> None:
    config = made.new.copied(tmp_path / "world").configs["payco"]
    (config.store_folder / "cipher.key").chmod(0o640)
    with pytest.raises(ConfigError, match="has mode 0640: run chmod 600"):
        open_store(config)


def test_a_store_for_other_engines_is_refused(made: Made, tmp_path: Path) -> None:
    world = made.new.copied(tmp_path / "world")
    assert open_store(world.configs["payco"]).manifest.engines == (("he", "he"), ("he", "he"))
    wanted = {"payco": "he", "shop": {"distance": "he", "update": "beaver"}}
    with pytest.raises(StorageError) as raised:
        open_store(changed(world.configs["payco"], products=wanted))
    assert raised.value.sentence == (
        "the store 'store' was made for the engine he where kmeans.products asks for beaver (shop, update): "
        "make one for this job with `veilmeans offline`"
    )
    assert open_store(changed(world.configs["payco"], products={"payco": "auto", "shop": "he"}))


def changed(config: JobConfig, products: Any) -> JobConfig:
    content = config.model_dump()
    return JobConfig.model_validate({**content, "kmeans": {**content["kmeans"], "products": products}})


def test_a_key_is_made_once(tmp_path: Path) -> None:
    first, second = (make_own(tmp_path, AGREED) for _ in range(2))
    assert first == second
    assert (first.scheme, first.bits) == (AGREED.scheme, AGREED.bits)


# Keys from peers.
def sent(key: he.PublicKey, **fields: Any) -> bytes:
    return json.dumps({**key.to_json(), **fields}).encode()


OWN = fixed_key("okamoto-uchiyama").public
UNUSABLE = {
    "nothing": b"",
    "no text": b"\xff\xfe\x00",
    "no object": b"[1, 2]",
    "null": b"null",
    "deep": b"[" * 100_000,
    "no scheme": b"{}",
    "another scheme": sent(OWN, scheme="rsa"),
    "a field more": sent(OWN, p="7"),
    "an even n": sent(OWN, n=f"{OWN.modulus + 1:x}"),
    "a short n": sent(OWN, n="f"),
    "a long n": sent(OWN, n="f" * 10_000),
    "g = 1": sent(OWN, g="1"),
    "g no string": sent(OWN, g=5),
    "bits no number": sent(OWN, bits="1024"),
    "too many bits": sent(OWN, bits=1 << 40),
}


@pytest.mark.parametrize("what", UNUSABLE)
def test_what_cannot_be_a_key_is_refused(tmp_path: Path, what: str) -> None:
    with pytest.raises(RefusedError) as raised:
        keep_peer(tmp_path, "shop", UNUSABLE[what], AGREED)
    assert raised.value.sentence == "shop sent no public key that could be used: does it run another veilmeans?"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("scheme", "bits"), [("okamoto-uchiyama", 1536), ("paillier", 1024)])
def test_a_key_of_another_kind_than_agreed_is_refused(tmp_path: Path, scheme: str, bits: int) -> None:
    with pytest.raises(RefusedError) as raised:
        keep_peer(tmp_path, "shop", sent(fixed_key(scheme, bits).public), AGREED)
    assert raised.value.sentence == f"shop sent a key of {bits} bits for {scheme}: 1024 bits were agreed on"
    assert not list(tmp_path.iterdir())


MESSAGES: dict[str, Mapping[str, Any]] = {
    "nothing": {},
    "another name": {"keys": np.zeros(3, np.uint8)},
    "another type": {"key": np.zeros(3, np.uint64)},
}


@pytest.mark.parametrize("what", MESSAGES)
def test_a_peer_that_sends_no_key_is_refused(made: Made, tmp_path: Path, what: str) -> None:
    config, board = made.new.copied(tmp_path / "world").configs["payco"].offline(), Board()
    key = MessageKey(Address(config.run, 0, "offline.key", 0), "shop", "payco")
    board.put_all([Outgoing.of(key, MESSAGES[what])])
    with pytest.raises(RefusedError) as raised:
        exchange_keys(board, config, SchemeParameters("okamoto-uchiyama", 2048))
    assert raised.value.sentence == "shop sent no public key where one was due"


def test_keys_cross_and_nothing_else(made: Made, tmp_path: Path) -> None:
    world, board = made.new.copied(tmp_path / "world"), Board()
    configs = [world.configs[name].offline() for name in BOTH]
    in_parallel(
        [partial(exchange_keys, board, config, SchemeParameters("okamoto-uchiyama", 2048)) for config in configs]
    )
    assert {(key.sender, key.recipient) for key in board.messages} == {BOTH, BOTH[::-1]}
    for payload in board.messages.values():
        assert not found_in(payload.to_pybytes(), secrets(world))


# Where secrets are not.
def secrets(world: World) -> dict[str, bytes]:
    """The numbers and seeds of both parties, in every form in which they could be written."""
    forms = {}
    for name in BOTH:
        ring = keyring(world, name)
        key = ring.own.to_json()
        numbers = {field: int(str(key[field]), 16) for field in "pqt"}
        for field, number in numbers.items():
            size = -(-number.bit_length() // 8)
            raw = {"little": number.to_bytes(size, "little"), "big": number.to_bytes(size, "big")}
            written = {"hex": f"{number:x}".encode(), "HEX": f"{number:X}".encode(), "decimal": str(number).encode()}
            forms |= {f"{name} {field} {how}": form for how, form in {**raw, **written}.items()}
        forms |= {f"{name} seed": ring.seed, f"{name} seed hex": ring.seed.hex().encode()}
    return forms


def found_in(data: bytes, forms: Mapping[str, bytes]) -> list[str]:
    return [what for what, form in forms.items() if form in data]


def test_no_file_and_no_message_but_the_key_files_has_a_secret(made: Made) -> None:
    """All that is left of the offline phase and the run of all three, whose messages are all there."""
    forms = secrets(made.used)
    files = [file for file in sorted(made.used.folder.rglob("*")) if file.is_file()]
    messages = [file for file in files if file.suffix == ".msg"]
    assert {"offline.key", "distance.00.cross", "unmask.00.unmask"} <= {file.parent.name for file in messages}
    with_secrets = {
        (file.parent.parent.parent.parent.name, file.name) for file in files if found_in(file.read_bytes(), forms)
    }
    assert with_secrets == {(name, file) for name in BOTH for file in SECRETS}


def test_no_log_has_a_secret(made: Made) -> None:
    assert "agreed with" in made.log
    assert not found_in(made.log.encode(), secrets(made.used))


def test_nothing_shows_a_secret_of_its_own(made: Made) -> None:
    forms, config = secrets(made.used), made.used.configs["payco"]
    ring = keyring(made.used, "payco")
    tables = Tables(lambda *_: np.zeros((0, 1), "V256"))
    keyed = HEOperations(ring, tables, 0, Address("store.0", 0, "stage", 0), lambda _: np.zeros(0, "V256"))
    context = PartyContext(config, "binding", store_number=0)
    opened = replace(context.open(), ciphers=HEContext(ring, tables))
    shown = [ring, ring.own, keyed, HEContext(ring, tables), opened, context, TripleStore.open(config.store_folder)]
    for each in shown:
        assert not found_in(f"{each!r} {each!s}".encode(), forms), type(each)
    assert not found_in(pickle.dumps(context), forms)
    opened.exchange.close()


@pytest.mark.parametrize("what", ["keyring", "cipher seat", "open seat"])
def test_what_holds_secrets_is_not_pickled(made: Made, what: str) -> None:
    ring = keyring(made.used, "payco")
    context = PartyContext(made.used.configs["payco"], "binding", store_number=0).open()
    held = {"keyring": ring, "cipher seat": HEContext(ring, Tables(lambda *_: None)), "open seat": context}  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match="secrets"):
        pickle.dumps(held[what])
    assert Party(0, BOTH) == context.party
    context.exchange.close()
