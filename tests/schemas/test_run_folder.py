"""The names of files below `storage`: as they are on disk, and spelled in one module only."""

import re
from pathlib import Path

import pytest

from veilmeans.io.storage.checkpoints import checkpoint_numbers, shard_numbers
from veilmeans.io.storage.encoded_shards import complete_folders
from veilmeans.schemas.run_folder import ENCRYPTED, OPERANDS, EncodedFolder, RunFolder, StorageFolder, StoreFolder

ROOT = Path(__file__).parents[2]
STORAGE = StorageFolder(Path("storage"))
RUN, STORE = STORAGE.run("october"), STORAGE.store("first")
ENCODED = STORAGE.prepared.encoded("abc")
NAMES = {
    STORAGE.inbox: "inbox",
    STORAGE.scratch: "scratch",
    STORAGE.link_clock: "link.clock",
    STORAGE.measured_costs("paillier", 2048): "costs-paillier-2048.json",
    STORAGE.stores: "triples",
    ENCODED.manifest: "prepared/prepared-abc/manifest.json",
    ENCODED.rows(3): "prepared/prepared-abc/000003.rows.arrow",
    ENCODED.ids(3): "prepared/prepared-abc/000003.ids.arrow",
    RUN.terms("payco", "shop"): "runs/october/bound.payco-to-shop.json",
    RUN.joint_scaling: "runs/october/scale.json",
    RUN.checkpoint(7): "runs/october/checkpoints/7.arrow",
    RUN.shard(OPERANDS, 3): "runs/october/operands/3.arrow",
    RUN.shard(f"{ENCRYPTED}/7", 0): "runs/october/encrypted/7/0.arrow",
    RUN.dropped: "runs/october/collected",
    RUN.finished: "runs/october/finished.json",
    RUN.assignments: "runs/october/assignments.parquet",
    RUN.centroids: "runs/october/centroids.parquet",
    RUN.result: "runs/october/result.json",
    RUN.report: "runs/october/report.json",
    RUN.html_report: "runs/october/report.html",
    RUN.farewell: "runs/october/farewell",
    RUN.dealer_seed: "runs/october/dealer.seed",
    STORE.manifest: "triples/first/manifest.json",
    STORE.seed: "triples/first/seed",
    STORE.claim(2): "triples/first/claims/2.json",
    STORE.unfinished_claim(2, "october"): "triples/first/claims/2.october.part",
    STORE.corrections(0, 1, 2): "triples/first/corrections/0/1/2.arrow",
    STORE.ciphertexts(0, 1, 2): "triples/first/ciphers/0/1/2.arrow",
    STORE.he_key: "triples/first/cipher.key",
    STORE.file_key: "triples/first/files.key",
    STORE.number_seed(2): "triples/first/seeds/2",
    STORE.mask_seed(2): "triples/first/seeds/2.ciphers",
    STORE.peer_key("shop"): "triples/first/cipher.shop.pub",
    STORE.making.secret: "triples/first/making/secret",
    STORE.making.setup: "triples/first/making/setup.arrow",
    STORE.making.base(0, 1, 2): "triples/first/making/base/0/1/2.arrow",
    STORE.making.ots(0, 1, 2): "triples/first/making/ots/0/1/2.arrow",
    STORE.making.ended(1): "triples/first/making/pass-1.ended",
}


@pytest.mark.parametrize(("path", "name"), NAMES.items(), ids=NAMES.values())
def test_files_have_the_names_of_earlier_runs(path: Path, name: str) -> None:
    assert path == Path("storage") / name


def test_a_folder_is_usable_as_a_path(tmp_path: Path) -> None:
    (tmp_path / "runs" / "october").mkdir(parents=True)
    folder = StorageFolder(tmp_path).run("october")
    assert folder.run == "october"
    assert str(folder) == f"{folder}" == f"{tmp_path}/runs/october"
    assert Path(folder) == folder.path
    assert folder == RunFolder(folder.path)
    assert folder != StoreFolder(folder.path)


def test_numbers_are_read_from_the_names_of_files(tmp_path: Path) -> None:
    run, store = RunFolder(tmp_path / "run"), StoreFolder(tmp_path / "store")
    assert (checkpoint_numbers(run), shard_numbers(run, OPERANDS), store.claim_numbers()) == ([], [], [])
    for file in (
        run.checkpoint(10), run.checkpoint(9), run.checkpoints / "x.arrow", run.checkpoints / "¹.arrow",
        run.shard(OPERANDS, 4), store.claim(0), store.unfinished_claim(1, "october"), store.claims / "notes.json",
    ):  # fmt: skip
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    assert (checkpoint_numbers(run), shard_numbers(run, OPERANDS), store.claim_numbers()) == ([9, 10], [4], [0])


def test_a_folder_of_encoded_shards_counts_when_it_has_its_manifest(tmp_path: Path) -> None:
    prepared = StorageFolder(tmp_path).prepared
    for digest in ("complete", "unfinished"):
        prepared.encoded(digest).path.mkdir(parents=True)
    prepared.encoded("complete").manifest.touch()
    assert complete_folders(prepared) == [EncodedFolder(prepared.path / "prepared-complete")]


def test_no_other_module_spells_the_name_of_a_file() -> None:
    names = {Path(name).name for name in NAMES.values()}
    fixed = {name for name in names if "." in name and not any(part in name for part in ("shop", "abc", "2", "000003"))}
    assert {"report.json", "finished.json", "manifest.json", "cipher.key", "dealer.seed", "link.clock"} < fixed
    modules = [file for room in ("io", "transforms", "pipelines", "schemas") for file in (ROOT / room).rglob("*.py")]
    quoted = re.compile(rf"""["']({"|".join(map(re.escape, fixed))}|bound\..*)["']""")
    spelled = {file.name: quoted.findall(file.read_text()) for file in modules if file.name != "run_folder.py"}
    assert not {name: found for name, found in spelled.items() if found}
