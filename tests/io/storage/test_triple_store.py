"""The triple store: complete or refused, and no part of it ever serves two runs."""

import gc
import json
import re
import weakref
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from support.error_sentence import error_sentence
from support.parties import file_mode, in_parallel
from support.triple_stores import MANIFEST, SEED, make_store
from veilmeans.io.files.tagged_files import TAG_SIZE
from veilmeans.io.storage import triple_store
from veilmeans.io.storage.number_seeds import derive_number_seed
from veilmeans.io.storage.triple_store import StoreRun, TripleStore
from veilmeans.schemas.address import Address
from veilmeans.schemas.errors import ConfigError, StorageError
from veilmeans.schemas.run_folder import StorageFolder, StoreFolder

storage_error = partial(error_sentence, kind=StorageError)


# On disk.
def test_a_store_opens_when_it_is_complete_and_not_before(tmp_path: Path) -> None:
    folder = StorageFolder(tmp_path).store("october")
    assert str(folder) in storage_error(lambda: TripleStore.open(folder))
    store = TripleStore.create(folder, MANIFEST, SEED)
    store.write_corrections(0, 0, 0, {"x": np.ones(2, np.uint64)})
    assert str(folder) in storage_error(lambda: TripleStore.open(folder))
    store.complete()
    opened = TripleStore.open(folder)
    assert opened == store
    assert opened.manifest == MANIFEST
    assert [opened.seed_of(number) for number in range(3)] == [derive_number_seed(SEED, number) for number in range(3)]
    assert not folder.seed.exists()
    assert not list(folder.path.rglob("*.part"))


@pytest.mark.parametrize("text", ["", "{", "5", "[]", "{}", '{"store": "x"}', '{"colour": "red"}', b"\xff\xfe"])
def test_a_manifest_that_cannot_be_read_is_named(tmp_path: Path, text: str | bytes) -> None:
    make_store(StoreFolder(tmp_path))
    file = tmp_path / "manifest.json"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert str(file) in storage_error(lambda: TripleStore.open(StoreFolder(tmp_path)))


def test_the_seed_is_for_this_user_only(tmp_path: Path) -> None:
    make_store(StoreFolder(tmp_path / "store"))
    assert file_mode(tmp_path / "store") == 0o700
    key = tmp_path / "store" / "files.key"
    assert {file_mode(file) for file in (key, *(tmp_path / "store" / "seeds").iterdir())} == {0o600}
    key.chmod(0o644)
    assert "has mode 0644" in error_sentence(lambda: TripleStore.open(StoreFolder(tmp_path / "store")), ConfigError)
    key.unlink()
    assert "cannot be read" in error_sentence(lambda: TripleStore.open(StoreFolder(tmp_path / "store")), ConfigError)


def test_another_seed_does_not_replace_the_first(tmp_path: Path) -> None:
    make_store(StoreFolder(tmp_path))
    make_store(StoreFolder(tmp_path))
    assert "not overwritten" in storage_error(lambda: TripleStore.create(StoreFolder(tmp_path), MANIFEST, bytes(32)))
    assert TripleStore.open(StoreFolder(tmp_path)).seed_of(0) == derive_number_seed(SEED, 0)


def test_a_used_number_is_forgotten_and_the_others_stay(tmp_path: Path) -> None:
    """After a run its masks cannot be computed from what is left, and a rerun of `offline` does not bring them back."""
    store = make_store(StoreFolder(tmp_path))
    for number in (0, 1):
        store.write_corrections(number, 0, 0, {"x": np.ones(1, np.uint64)})
        store.write_ciphertexts(number, 0, 0, {"x": np.ones(1, np.uint64)})
    store.forget(0)
    store.forget(0)
    make_store(StoreFolder(tmp_path))
    again = TripleStore.open(StoreFolder(tmp_path))
    left = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    secrets = [SEED, derive_number_seed(SEED, 0)]
    assert not [file for file, content in left.items() if any(secret in content for secret in secrets)]
    assert not again.has_corrections(0, 0, 0)
    assert not again.has_ciphertexts(0, 0, 0)
    assert "seeds/0 is gone" in storage_error(lambda: again.seed_of(0))
    assert again.has_corrections(1, 0, 0)
    assert again.seed_of(1) == derive_number_seed(SEED, 1)


@pytest.mark.parametrize("change", ["a bit flipped", "another number's", "cut"])
def test_a_damaged_seed_of_a_number_is_refused(tmp_path: Path, change: str) -> None:
    make_store(StoreFolder(tmp_path))
    file, content = tmp_path / "seeds" / "1", bytearray((tmp_path / "seeds" / "1").read_bytes())
    content[0] ^= 1
    changed = {
        "a bit flipped": content,
        "another number's": (tmp_path / "seeds" / "2").read_bytes(),
        "cut": content[:9],
    }
    file.write_bytes(changed[change])
    store = TripleStore.open(StoreFolder(tmp_path))
    assert f"{file} is damaged" in storage_error(lambda: store.seed_of(1))


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert f"{tmp_path}/file" in storage_error(
        lambda: TripleStore.create(StoreFolder(tmp_path / "file"), MANIFEST, SEED)
    )
    store = make_store(StoreFolder(tmp_path / "store"))
    (tmp_path / "store" / "corrections").touch()
    assert "cannot be written" in storage_error(lambda: store.write_corrections(0, 0, 0, {"x": np.ones(1, np.uint64)}))


def test_only_the_files_that_were_read_last_stay_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, values = make_store(StoreFolder(tmp_path)), np.ones(1000, np.uint64)
    monkeypatch.setattr(triple_store, "_mapped", triple_store._MappedFiles(2 * values.nbytes))
    for shard in range(4):
        store.write_corrections(0, 0, shard, {"stage:c": values * shard})
    read = [weakref.ref(store.corrections(0, 0, shard)["stage:c"]) for shard in (0, 1, 0, 2, 3, 2)]
    gc.collect()
    assert [each() is not None for each in read] == [False, False, False, True, True, True]
    assert [store.corrections(0, 0, shard)["stage:c"][0] for shard in range(4)] == [0, 1, 2, 3]


def test_a_file_above_the_limit_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triple_store, "_mapped", triple_store._MappedFiles(0))
    store = make_store(StoreFolder(tmp_path))
    store.write_corrections(0, 0, 0, {"stage:c": np.ones(3, np.uint64)})
    assert [store.corrections(0, 0, 0)["stage:c"].tolist() for _ in range(2)] == [[1, 1, 1]] * 2


def test_corrections_are_read_by_number_iteration_and_shard(tmp_path: Path) -> None:
    store = make_store(StoreFolder(tmp_path))
    places = [(number, iteration, shard) for number in range(2) for iteration in range(2) for shard in range(2)]
    for i, place in enumerate(places):
        store.write_corrections(*place, {"stage:mul.c": np.full(3, i, np.uint64), "stage:bit": np.full(2, i, np.uint8)})
    again = TripleStore.open(StoreFolder(tmp_path))
    for i, (number, iteration, shard) in enumerate(places):
        run, where = StoreRun(again, number), Address("any", iteration, "stage", shard)
        assert again.has_corrections(number, iteration, shard)
        assert run.correction(where, "mul.c").tolist() == [i] * 3
        assert run.correction(where, "bit").dtype == np.uint8


@pytest.mark.parametrize("kind", ["corrections", "ciphertexts"])
def test_one_flipped_bit_is_named_before_the_array_is_used(tmp_path: Path, kind: str) -> None:
    store = make_store(StoreFolder(tmp_path))
    getattr(store, f"write_{kind}")(0, 0, 0, {"stage:mul.c": np.zeros(3, np.uint64)})
    getattr(store, f"write_{kind}")(0, 0, 1, {"stage:mul.c": np.zeros(3, np.uint64)})
    first, second = (getattr(StoreFolder(tmp_path), kind)(0, 0, shard) for shard in (0, 1))
    content = bytearray(first.read_bytes())
    content[-TAG_SIZE - 20] ^= 1  # in the last number, before the end mark and the tag
    second.write_bytes(first.read_bytes())
    first.write_bytes(content)
    for shard, file in enumerate((first, second)):  # the other one is a right file at a wrong place
        assert f"{file} is damaged" in storage_error(lambda shard=shard: getattr(store, kind)(0, 0, shard))


@pytest.mark.parametrize("file", ["files.key", "manifest.json"])
def test_a_damaged_key_or_manifest_is_refused(tmp_path: Path, file: str) -> None:
    make_store(StoreFolder(tmp_path))
    content = (tmp_path / file).read_bytes()
    altered = content.replace(b'"runs": 3', b'"runs": 7') if file == "manifest.json" else content[:-1] + b"x"
    assert altered != content
    (tmp_path / file).write_bytes(altered)
    assert f"{tmp_path / file}" in storage_error(lambda: TripleStore.open(StoreFolder(tmp_path)))


def test_missing_corrections_are_named(tmp_path: Path) -> None:
    store = make_store(StoreFolder(tmp_path))
    assert not StoreRun(store, 0).has_corrections(0, 0)
    store.write_corrections(0, 1, 1, {})
    assert StoreRun(store, 0).has_corrections(1, 1)  # nothing is missing if a party has no corrections
    store.write_corrections(0, 0, 0, {"stage:mul.c": np.ones(1, np.uint64)})
    run = StoreRun(store, 0)
    assert run.has_corrections(0, 0)
    assert not any((run.has_corrections(0, 1), run.has_corrections(1, 0), StoreRun(store, 1).has_corrections(0, 0)))
    sentence = storage_error(lambda: run.correction(Address("any", 1, "stage", 0), "mul.c"))
    assert f"0.arrow in {tmp_path}/corrections/0/1" in sentence
    for iteration, shard in ((0, 0), (1, 1)):
        sentence = storage_error(lambda i=iteration, s=shard: run.correction(Address("any", i, "stage", s), "mul.d"))
        assert "'stage:mul.d'" in sentence


# Claims.
def test_a_number_is_claimed_once(tmp_path: Path) -> None:
    store = make_store(StoreFolder(tmp_path))
    assert (store.next_number(), store.runs_left()) == (0, 3)
    assert store.claim(0, "one", "data").number == 0
    assert (store.next_number(), store.runs_left()) == (1, 2)
    assert re.match("number 0 of .* 'october' .* 'two'", storage_error(lambda: store.claim(0, "two", "data")))
    assert store.find_claim("two", "data") is None
    assert json.loads((tmp_path / "claims" / "0.json").read_text()) == {"run": "one", "binding": "data"}


def test_the_same_run_again_gets_the_same_number(tmp_path: Path) -> None:
    store = make_store(StoreFolder(tmp_path))
    store.claim(0, "one", "data")
    store.claim(1, "two", "data")
    for number in (0, 1, 2, 99):
        assert store.claim(number, "one", "data").number == 0
        assert store.claim(number, "two", "data").number == 1
    assert store.find_claim("two", "data") == StoreRun(store, 1)
    assert store.runs_left() == 1


def test_the_same_run_with_other_data_is_refused(tmp_path: Path) -> None:
    store = make_store(StoreFolder(tmp_path))
    store.claim(0, "one", "data")
    for call in (lambda: store.claim(1, "one", "other"), lambda: store.find_claim("one", "other")):
        assert re.match("run 'one' .* 'october' for other data", storage_error(call))
    assert store.next_number() == 1


def test_numbers_that_were_skipped_are_never_used(tmp_path: Path) -> None:
    store = make_store(StoreFolder(tmp_path))
    store.claim(1, "one", "data")
    assert (store.next_number(), store.runs_left()) == (2, 1)
    assert "is not free" in storage_error(lambda: store.claim(0, "two", "data"))
    assert "is not free" in storage_error(lambda: store.claim(3, "two", "data"))
    assert store.claim(2, "two", "data").number == 2


def test_claims_are_kept_when_the_store_is_opened_or_made_again(tmp_path: Path) -> None:
    make_store(StoreFolder(tmp_path)).claim(1, "one", "data")
    again = TripleStore.open(StoreFolder(tmp_path))
    assert again.find_claim("one", "data") == StoreRun(again, 1)
    assert again.next_number() == 2
    make_store(StoreFolder(tmp_path))  # `veilmeans offline` is rerun
    assert TripleStore.open(StoreFolder(tmp_path)).next_number() == 2
    assert "run 'one'" in storage_error(lambda: TripleStore.open(StoreFolder(tmp_path)).claim(2, "one", "other"))


def test_the_numbers_of_a_large_store_are_compared_as_numbers(tmp_path: Path) -> None:
    store = make_store(StoreFolder(tmp_path), replace(MANIFEST, runs=1000))
    for number in (2, 10, 100):
        store.claim(number, f"run{number}", "data")
    assert (store.next_number(), store.runs_left()) == (101, 899)


def test_of_runs_that_claim_one_number_at_the_same_time_one_gets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All have seen that it is free before the first of them takes it."""
    store = make_store(StoreFolder(tmp_path))
    monkeypatch.setattr(TripleStore, "next_number", lambda _: 0)

    def claim(run: str) -> str:
        try:
            return f"claimed {store.claim(0, run, 'data').number}"
        except StorageError:
            return "refused"

    outcomes = in_parallel([partial(claim, f"run{i}") for i in range(8)])
    owner = json.loads((tmp_path / "claims" / "0.json").read_text())["run"]
    assert outcomes == ["claimed 0" if f"run{i}" == owner else "refused" for i in range(8)]
    assert [file.name for file in (tmp_path / "claims").iterdir()] == ["0.json"]


def test_a_store_that_is_used_up_is_named_with_what_is_left(tmp_path: Path) -> None:
    store = make_store(StoreFolder(tmp_path))
    store.claim(1, "one", "data")
    store.check_suffices(runs=1)
    assert re.search("'october' serves 3 runs and has 1 left", storage_error(lambda: store.check_suffices(runs=2)))
    store.claim(2, "two", "data")
    assert re.search("'october' serves 3 runs and has 0 left", storage_error(lambda: store.claim(3, "three", "data")))
    assert store.claim(3, "two", "data").number == 2


def test_a_store_for_fewer_iterations_is_named_with_how_many_are_missing(tmp_path: Path) -> None:
    store = make_store(StoreFolder(tmp_path))
    store.check_suffices(iterations=2)
    sentence = storage_error(lambda: store.check_suffices(iterations=1200))
    assert re.search("'october' serves 2 iterations .* 1,198 more", sentence)


def test_a_store_for_another_job_is_refused(tmp_path: Path) -> None:
    store = make_store(StoreFolder(tmp_path))
    store.check_suffices(plan="digest")
    assert re.search(r"'october' .*\(5 rows\)", storage_error(lambda: store.check_suffices(plan="other")))
