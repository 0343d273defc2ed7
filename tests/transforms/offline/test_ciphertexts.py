"""The offline phase of the homomorphic engine: keys and ciphertexts in triple stores, and no secret anywhere else.

A dealer and two parties make a store in this process and train with it; no message is dropped.
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
import pytest

from support.fault_injection import stored_messages
from support.parties import InMemoryExchange, file_mode, in_parallel
from support.run_results import file_contents, keep_messages
from support.worlds import BOTH, DEALER, World, blobs, changed_config, make_world, run_in_threads, tables
from veilmeans.crypto.he.product_parameters import SchemeParameters
from veilmeans.io.exchange.exchange import Outgoing
from veilmeans.io.storage.he_keyring import Keyring, load_keyring
from veilmeans.io.storage.run_report import RunReport
from veilmeans.io.storage.triple_store import TripleStore
from veilmeans.pipelines import offline
from veilmeans.pipelines.offline import exchange_keys, run_offline
from veilmeans.pipelines.session.kmeans_from_config import traced_job
from veilmeans.pipelines.session.triple_claim import open_store
from veilmeans.pipelines.train import run_train
from veilmeans.schemas.address import Address
from veilmeans.schemas.errors import ConfigError, RefusedError, StorageError
from veilmeans.schemas.message import MessageKey
from veilmeans.schemas.run_folder import StoreFolder
from veilmeans.transforms.rounds.he_operations import HEContext, HEOperations, PowerTableCache
from veilmeans.transforms.rounds.party_context import PartyContext

ROWS, WIDTH = 6, 4
CIPHER = SchemeParameters("okamoto-uchiyama", 2048)


@dataclass(frozen=True)
class OfflineRun:
    """A world whose store is unused, a copy of it after a training, and everything that was logged."""

    unused: World
    trained: World
    log: str


class LogRecorder(logging.Handler):
    """A handler that keeps all lines."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> OfflineRun:
    """Two parties with two columns each, who use `he` for all products."""
    folder, recorder, logger = tmp_path_factory.mktemp("ciphertexts"), LogRecorder(), logging.getLogger("veilmeans")
    level = logger.level
    logger.addHandler(recorder)
    logger.setLevel(logging.DEBUG)
    with pytest.MonkeyPatch.context() as patch:
        keep_messages(patch)
        patch.setattr(offline, "delete_dealer_seeds", lambda _: None)  # as before the store is complete everywhere
        data = tables(blobs(ROWS, WIDTH), ["a", "b", "c", "d"], [2], axis=1)
        job = {"layout": "vertical", "clusters": 2, "max_iter": 1, "products": "he"}
        unused = make_world(folder / "unused", data, job, dealer=DEALER)
        trained = unused.copied(folder / "trained", audit={"keep": True})  # keeps the seeds that it used
        trained.train()
    logger.removeHandler(recorder)
    logger.setLevel(level)
    return OfflineRun(unused, trained, "\n".join(recorder.lines))


def store(world: World, name: str) -> StoreFolder:
    return world[name].store_folder


def keyring(world: World, name: str) -> Keyring:
    return load_keyring(store(world, name), world[name].me).for_number(0)


# the content of a store
def test_secrets_are_readable_by_their_owner_alone_and_keys_are_json(run: OfflineRun) -> None:
    for name in BOTH:
        folder = store(run.unused, name)
        assert {file_mode(file) for file in (folder.he_key, folder.mask_seed(0))} == {0o600}
        key = json.loads(folder.he_key.read_text())
        assert (key["scheme"], key["bits"]) == (CIPHER.scheme, CIPHER.bits)
        assert set(key) == {"scheme", "bits", "p", "q", "t", "g"}
        assert len(folder.mask_seed(0).read_bytes()) == 32 + 32


def test_each_party_has_the_others_public_key_and_the_dealer_none(run: OfflineRun) -> None:
    for i, (name, peer) in enumerate((BOTH, BOTH[::-1])):
        stored = json.loads(store(run.unused, name).peer_key(peer).read_text())
        assert stored == keyring(run.unused, peer).own.public.to_json()
        assert set(stored) == {"scheme", "bits", "n", "g"}
        assert keyring(run.unused, name).public(1 - i) == keyring(run.unused, peer).own.public
    assert not list(run.unused[DEALER].storage.rglob("cipher*"))


def test_no_two_parties_and_no_two_stores_share_a_key_or_a_seed(run: OfflineRun, tmp_path: Path) -> None:
    """A second store does not change the first."""
    world = run.unused.copied(tmp_path / "world")
    before = {name: file_contents(store(world, name).path) for name in BOTH}
    second = world.altered(triples={"store": "november"})
    run_in_threads(run_offline, second.configs)
    rings = [keyring(each, name) for each in (world, second) for name in BOTH]
    assert len({ring.seed for ring in rings}) == len({ring.own.public.modulus for ring in rings}) == 4
    assert {name: file_contents(store(world, name).path) for name in BOTH} == before
    files = [file_contents(store(each, name).all_ciphertexts) for each in (world, second) for name in BOTH]
    assert len({content for each in files for content in each.values()}) == sum(map(len, files)) == 4


def test_a_rerun_keeps_the_keys_and_makes_the_same_bytes(run: OfflineRun, tmp_path: Path) -> None:
    """Simulate a crash before the store was complete, in which some ciphertexts were lost."""
    world = run.unused.copied(tmp_path / "world")
    before = {name: file_contents(store(world, name).path) for name in BOTH}
    for config in world.configs.values():
        config.offline().run_folder.farewell.unlink()
        shutil.rmtree(config.storage_folder.inbox / config.offline().run, ignore_errors=True)
    for name in BOTH:
        store(world, name).manifest.unlink()
        store(world, name).ciphertexts(0, 0, 0).unlink()
    run_in_threads(run_offline, world.configs)
    assert {name: file_contents(store(world, name).path) for name in BOTH} == before


def test_ciphertexts_are_counted_and_timed_under_the_stage_that_uses_them(run: OfflineRun) -> None:
    for name in BOTH:
        config = run.unused[name]
        stages = RunReport(config.offline().run_folder).content["stages"]
        own_counts = {
            stage: sum(need.count for need in needs if need.maker == config.me.index)
            for stage, needs in traced_job(config).ciphertext_needs(0, 0).items()
        }
        assert {stage: each["ciphertexts"] for stage, each in stages.items() if "ciphertexts" in each} == own_counts
        assert all(stages[stage]["computed_us"] > 0 for stage in own_counts)
        assert sum(own_counts.values()) > 0


# damaged keys
def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-5])


def replace_text(content: str, file: Path) -> None:
    file.write_text(content)


def remove_field(file: Path) -> None:
    key = json.loads(file.read_text())
    del key["g"]
    file.write_text(json.dumps(key))


def change_number(file: Path) -> None:
    key = json.loads(file.read_text())
    name = "p" if "p" in key else "n"
    file.write_text(json.dumps({**key, name: f"{int(key[name], 16) + 1:x}"}))


def flip_bit(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(bytes([content[0] ^ 1]) + content[1:])


DAMAGE: dict[str, Callable[[Path], None]] = {
    "missing": Path.unlink,
    "truncated": truncate,
    "empty": partial(replace_text, ""),
    "a list": partial(replace_text, "[]"),
    "a number": partial(replace_text, "7"),
    "without g": remove_field,
    "another number": change_number,
    "a bit flipped": flip_bit,
}
CASES = [(file, how) for file in ("cipher.key", "cipher.shop.pub") for how in DAMAGE]
CASES += [
    (file, how) for file in ("seeds/0", "seeds/0.ciphers") for how in ("missing", "truncated", "empty", "a bit flipped")
]


@pytest.mark.parametrize(("file", "how"), CASES)
def test_a_damaged_or_missing_key_is_named_before_anything_is_sent(
    run: OfflineRun, tmp_path: Path, file: str, how: str
) -> None:
    config = run.unused.copied(tmp_path / "world")["payco"]
    path = config.store_folder.path / file
    DAMAGE[how](path)
    with pytest.raises(StorageError) as raised:
        run_train(config)
    assert str(path) in raised.value.sentence
    assert not config.run_folder.path.exists()


def test_a_key_that_others_may_read_is_refused(run: OfflineRun, tmp_path: Path) -> None:
    config = run.unused.copied(tmp_path / "world")["payco"]
    config.store_folder.he_key.chmod(0o640)
    with pytest.raises(ConfigError, match="0640"):
        open_store(config)


def test_a_store_for_other_engines_is_refused(run: OfflineRun, tmp_path: Path) -> None:
    config = run.unused.copied(tmp_path / "world")["payco"]
    assert open_store(config).manifest.engines == (("he", "he"), ("he", "he"))
    other = {"payco": "he", "shop": {"distance": "he", "update": "beaver"}}
    with pytest.raises(StorageError, match=r"kmeans\.products .*shop, update"):
        open_store(changed_config(config, kmeans={"products": other}))
    assert open_store(changed_config(config, kmeans={"products": {"payco": "auto", "shop": "he"}}))


# the exchange of keys
MESSAGES: dict[str, Mapping[str, Any]] = {
    "nothing": {},
    "another name": {"keys": np.zeros(3, np.uint8)},
    "another type": {"key": np.zeros(3, np.uint64)},
}


@pytest.mark.parametrize("what", MESSAGES)
def test_a_peer_that_sends_no_key_is_refused(run: OfflineRun, tmp_path: Path, what: str) -> None:
    config, exchange = run.unused.copied(tmp_path / "world")["payco"].offline(), InMemoryExchange()
    key = MessageKey(Address(config.run, 0, "offline.key", 0), "shop", "payco")
    exchange.put_all([Outgoing.of(key, MESSAGES[what])])
    with pytest.raises(RefusedError, match="shop"):
        exchange_keys(exchange, config, CIPHER)


def test_only_public_keys_are_sent(run: OfflineRun, tmp_path: Path) -> None:
    world, exchange = run.unused.copied(tmp_path / "world"), InMemoryExchange()
    in_parallel([partial(exchange_keys, exchange, world[name].offline(), CIPHER) for name in BOTH])
    assert {(key.sender, key.recipient) for key in exchange.messages} == {BOTH, BOTH[::-1]}
    for payload in exchange.messages.values():
        assert not contained(payload.to_pybytes(), secret_forms(world))


# where secrets may be
def secret_forms(world: World) -> dict[str, bytes]:
    """List the secret numbers and seeds of both parties, in every form in which they could be written."""
    forms = {}
    for name in BOTH:
        ring = keyring(world, name)
        key = ring.own.to_json()
        for field in "pqt":
            number = int(str(key[field]), 16)
            size = -(-number.bit_length() // 8)
            binary = {"little": number.to_bytes(size, "little"), "big": number.to_bytes(size, "big")}
            written = {"hex": f"{number:x}".encode(), "HEX": f"{number:X}".encode(), "decimal": str(number).encode()}
            forms |= {f"{name} {field} {how}": form for how, form in {**binary, **written}.items()}
        forms |= {f"{name} seed": ring.seed, f"{name} seed hex": ring.seed.hex().encode()}
    return forms


def contained(data: bytes, forms: Mapping[str, bytes]) -> list[str]:
    """List the secrets that `data` contains."""
    return [what for what, form in forms.items() if form in data]


def test_only_key_files_contain_secrets(run: OfflineRun) -> None:
    """Search all files of all three members after offline phase and training, all their messages included."""
    forms = secret_forms(run.trained)
    files = [file for file in sorted(run.trained.folder.rglob("*")) if file.is_file()]
    inboxes = [config.storage_folder.inbox for config in run.trained.configs.values()]
    stages = {Path(message).parent.name for inbox in inboxes for message in stored_messages(inbox)}
    assert {"offline.key", "distance.00.cross", "unmask.00.unmask"} <= stages
    stores = [store(run.trained, name) for name in BOTH]
    key_files = {file for folder in stores for file in (folder.he_key, folder.mask_seed(0))}
    assert {file for file in files if contained(file.read_bytes(), forms)} == key_files


def test_the_log_contains_no_secret(run: OfflineRun) -> None:
    assert run.log
    assert not contained(run.log.encode(), secret_forms(run.trained))


def test_neither_repr_nor_str_contains_a_secret(run: OfflineRun) -> None:
    forms, config = secret_forms(run.trained), run.trained["payco"]
    ring, tables = keyring(run.trained, "payco"), PowerTableCache(lambda *_: np.zeros((0, 1), "V256"))
    operations = HEOperations(ring, tables, 0, Address("store.0", 0, "stage", 0), lambda _: np.zeros(0, "V256"))
    context, triples = PartyContext(config, "binding", store_number=0), TripleStore.open(config.store_folder)
    opened = replace(context.open(), he_context=HEContext(ring, tables))
    for each in (ring, ring.own, operations, HEContext(ring, tables), opened, context, triples):
        assert not contained(f"{each!r} {each!s}".encode(), forms), type(each)
    assert not contained(pickle.dumps(context), forms)
    opened.exchange.close()


def test_objects_with_secrets_cannot_be_pickled(run: OfflineRun) -> None:
    ring = keyring(run.trained, "payco")
    opened = PartyContext(run.trained["payco"], "binding", store_number=0).open()
    he_context = HEContext(ring, PowerTableCache(lambda *_: np.zeros((0, 1), "V256")))
    for each in (ring, he_context, opened):
        with pytest.raises(TypeError, match="secrets"):
            pickle.dumps(each)
    opened.exchange.close()
