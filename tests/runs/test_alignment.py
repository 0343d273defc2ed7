"""Tables with shuffled, partly common ids: aligned among two and three parties, and clustered as the joined table."""

from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from support.commands import Strike, at_rename, run_all
from support.ot_dealing import SMALL
from support.worlds import (
    BOTH,
    CLUSTERS,
    World,
    blobs,
    deal_stores,
    make_world_without_stores,
    run_in_threads,
    under_strikes,
)
from veilmeans.crypto.ot.psi.id_hash import IdHashes, hash_texts, hash_under_key
from veilmeans.io.storage.run_report import RunReport
from veilmeans.pipelines.align import describe, run_align, run_count
from veilmeans.pipelines.session.aligned_config import Alignment, load_alignment, with_alignment
from veilmeans.pipelines.train import run_train
from veilmeans.schemas.arrays import Arrays, to_stream
from veilmeans.schemas.errors import ConfigError, HandshakeError, InputError
from veilmeans.transforms.alignment import align_passes, alignment_shape
from veilmeans.transforms.kmeans.plaintext_kmeans import nearest, plaintext_iteration
from veilmeans.transforms.offline import ot_store
from veilmeans.transforms.offline.ot_setup import OtSetup

NAMES, ROWS, ITERATIONS = ("payco", "shop", "bank"), 60, 2


@pytest.fixture(autouse=True)
def _small_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """LPN sets that are far too small to be secure, and fast."""
    for module in (ot_store, align_passes):
        monkeypatch.setattr(module, "OtSetup", partial(OtSetup, setup=SMALL, main=SMALL))


def values_of(ids: list[int]) -> np.ndarray:
    """All columns of the rows with these ids: the table that nobody has."""
    return blobs(1000, 6)[ids]


def world_of(folder: Path, sets: list[list[int]], **fields: object) -> World:
    """A party for each list of ids, in the order of its rows; two columns each."""
    data = [
        pa.table(
            {"id": [f"c{each}" for each in ids], **dict(zip("xy", values_of(ids)[:, 2 * i : 2 * i + 2].T, strict=True))}
        )
        for i, ids in enumerate(sets)
    ]
    names = NAMES[: len(sets)]
    job = {"layout": "vertical", "clusters": CLUSTERS, "max_iter": ITERATIONS, "rows": ROWS, "products": "beaver"}
    job |= {"reveal": {"assignments": names, "outliers": names}, "outliers": {"count": 2}}
    job |= {"init": {"indices": [0, 1, 2]}, "drop_bits": 0}
    world = make_world_without_stores(folder, data, job, beam={"rows_per_shard": 12}, ids="id", **fields)
    return world.altered(align={}, triples={"provider": "ot"}, kmeans={"rows": None})


def aligned_ids(world: World, name: str) -> list[int]:
    """The ids of a party's aligned rows, whose values are checked."""
    found = load_alignment(world[name])
    assert found is not None
    table = pq.read_table(world[name].alignment_folder.path / found.file)
    ids = [int(each.removeprefix("c")) for each in table.column("id").to_pylist()]
    at = 2 * NAMES.index(name)
    found = np.stack([table.column(each).to_numpy() for each in "xy"], axis=1)
    assert np.array_equal(found, values_of(ids)[:, at : at + 2])
    return ids


def shuffled(ids: range, seed: int) -> list[int]:
    return np.random.default_rng(seed).permutation(ids).tolist()


@pytest.mark.parametrize("common", [1, 30, 60])
@pytest.mark.parametrize("parties", [2, 3])
def test_all_parties_have_the_common_rows_in_one_order(tmp_path: Path, common: int, parties: int) -> None:
    sets = [shuffled(range(i * (ROWS - common), i * (ROWS - common) + ROWS), i) for i in range(2)]
    sets += [shuffled(range(200), 2)][: parties - 2]
    world = world_of(tmp_path, sets)
    found = run_in_threads(run_align, world.configs)
    assert {each.rows for each in found} == {common}
    assert {each.order for each in found} == {found[0].order}
    ids = [aligned_ids(world, name) for name in world.configs]
    assert set(ids[0]) == set.intersection(*map(set, sets))
    assert all(each == ids[0] for each in ids)
    assert "are common to all parties (payco has 60, shop has 60" in describe(world["payco"], found[0])
    assert [each.order for each in run_in_threads(run_align, world.configs)] == [each.order for each in found]
    assert not any(world[name].alignment_folder.making.exists() for name in world.configs)


def test_no_common_row_ends_in_one_sentence(tmp_path: Path) -> None:
    world = world_of(tmp_path, [shuffled(range(40), 1), shuffled(range(40, 70), 2)])
    with pytest.raises(InputError, match=r"no id is common to all parties \(40 of payco, 30 of shop\)"):
        run_in_threads(run_train, world.configs)
    with pytest.raises(InputError, match="no id is common"):
        run_train(world["shop"])  # as often as it is run, and nobody need be there


@pytest.mark.parametrize(
    ("parties", "common"), [(2, 4), (2, 200), (2, 400), pytest.param(3, 200, marks=pytest.mark.slow)]
)
def test_clusters_are_those_of_the_joined_table(tmp_path: Path, parties: int, common: int) -> None:
    """1 %, half and all of 400 rows are common."""
    sets = [shuffled(range(400), 1), shuffled(range(400 - common, 800 - common), 2), shuffled(range(800), 3)][:parties]
    world = world_of(tmp_path, sets).altered(beam={"rows_per_shard": 150})
    align_and_train(world)
    assert set(aligned_ids(world, "payco")) == set.intersection(*map(set, sets))
    check_joined(world, parties)


def test_rows_without_an_id_or_with_one_that_is_taken_are_left_out(tmp_path: Path) -> None:
    """Their values are far from all others: if they counted, scale and clusters would be other ones."""
    world = world_of(tmp_path, [shuffled(range(60), 1), shuffled(range(20, 80), 2)])
    table = pq.read_table(world.data("payco"))
    wrong = [*table.column("id").to_pylist()[:3], None, "", " c25 "]
    spoilt = pa.table({"id": pa.array(wrong), "x": np.full(6, 9.0), "y": np.full(6, -9.0)})
    pq.write_table(pa.concat_tables([table, spoilt]), world.data("payco"))
    with pytest.raises(InputError, match=r"row 64, column 'id': the id is missing, here and in all in 2 of 66 rows"):
        run_align(world["payco"])
    dropping = world.altered("payco", align={"missing": "drop"})
    with pytest.raises(InputError, match=r"4 of 66 rows repeat the id of an earlier row, row 61 the first"):
        run_align(dropping["payco"])
    world = world.altered("payco", align={"missing": "drop", "duplicates": "first"})
    align_and_train(world)
    assert set(aligned_ids(world, "payco")) == set(range(20, 60))
    check_joined(world, 2)


def align_and_train(world: World) -> None:
    """Align, deal a store for the rows that are common, and train."""
    run_in_threads(run_align, world.configs)
    deal_stores(World(world.folder, {name: with_alignment(config) for name, config in world.configs.items()}))
    world.train()


def test_a_store_for_a_capacity_comes_before_the_alignment(tmp_path: Path) -> None:
    """Nobody knows yet how many rows will be common; more than the store is for are refused before anything is sent."""
    world = world_of(tmp_path, [shuffled(range(0, 80), 1), shuffled(range(20, 100), 2)]).altered(triples={"rows": 100})
    deal_stores(world)
    world.train()
    check_joined(world, 2)
    small = world.altered(run="small", triples={"store": "small", "rows": 59}, align={"name": "test"})
    with pytest.raises(ConfigError, match=r"with 60 common rows: triples.rows: the store is for 59 rows"):
        run_train(small["shop"])


def check_joined(world: World, parties: int) -> None:
    ids = aligned_ids(world, "payco")
    data = values_of(ids)[:, : 2 * parties]
    rows = (data - data.min(axis=0)) / np.ptp(data, axis=0)
    centroids = rows[:CLUSTERS]
    for _ in range(ITERATIONS):
        centroids = plaintext_iteration(lambda: [rows], centroids).centroids
    labels = nearest(rows, centroids)
    farthest = np.argsort(((rows - centroids[labels]) ** 2).sum(axis=1))[-2:]
    for name in world.configs:
        opened = pq.read_table(world.run_folder(name).assignments)
        assert opened.column("id").to_pylist() == [f"c{each}" for each in ids]
        assert opened.column("cluster").to_pylist() == labels.tolist()
        outliers = pq.read_table(world.run_folder(name).outliers).column("id").to_pylist()
        assert set(outliers) == {f"c{ids[at]}" for at in farthest}


def test_several_shards_spelling_and_rows_that_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One party has a CSV file whose ids are spelled otherwise; shards are many, and so are the Beam elements."""
    monkeypatch.setattr(alignment_shape, "_LEADER_IDS", 16)
    monkeypatch.setattr("veilmeans.pipelines.align._FEW_IDS", 0)
    sets = [shuffled(range(50), 1), shuffled(range(25, 100), 2)]
    world = world_of(tmp_path, sets)
    table = pq.read_table(world.data("shop"))
    spelled = [f"  {each.upper()} " for each in table.column("id").to_pylist()]
    file = tmp_path / "shop" / "data.csv"
    pa.csv.write_csv(table.set_column(0, "id", pa.array(spelled)), file)
    world = world.altered(align={"case": "lower"}).altered("shop", kmeans={"data": str(file)})
    found = run_in_threads(run_align, world.configs)
    assert found[0].rows == 25
    rows = with_alignment(world["shop"]).required_kmeans.data or ""
    read = pa.csv.read_csv(rows).column("id").to_pylist()
    assert rows.endswith(".csv")
    assert read[0].startswith("  C")
    assert [int(each.strip()[1:]) for each in read] == aligned_ids(world, "payco")
    stages = RunReport(world["payco"].aligning().run_folder).content["stages"]
    assert stages["align.mask"]["messages"] == alignment_shape.AlignmentShape((50, 75)).shards == 4
    file.write_text(file.read_text() + "\n")
    with pytest.raises(InputError, match=r"data.csv has changed since its rows were aligned as 'test'"):
        load_alignment(world["shop"])


def test_parties_must_agree_on_the_rule(tmp_path: Path) -> None:
    world = world_of(tmp_path, [[1, 2], [2, 3]]).altered("shop", align={"case": "lower"})
    with pytest.raises(HandshakeError, match=r"align\.case is"):
        run_in_threads(run_align, world.configs)


def test_counting_comes_before_matching_and_both_must_want_it(tmp_path: Path) -> None:
    world = world_of(tmp_path, [shuffled(range(50), 1), shuffled(range(25, 100), 2)])
    counting = world.altered(align={"reveal": "size"})
    for _ in range(2):  # as often as the parties like
        for sentence in run_in_threads(run_count, counting.configs):
            assert sentence.startswith(
                "25 ids are common to all parties (payco has 50, shop has 75); which ones nobody"
            )
    assert load_alignment(world["payco"]) is None
    with pytest.raises(ConfigError, match=r"align\.reveal is size"):
        run_train(counting["payco"])
    with pytest.raises(HandshakeError, match=r"align\.reveal is (size|ids) here"):
        run_in_threads(
            lambda run: run(),
            {"payco": partial(run_count, counting["payco"]), "shop": partial(run_align, world["shop"])},
        )
    assert [each.rows for each in run_in_threads(run_align, world.configs)] == [25, 25]


def test_a_third_party_with_a_dictionary_finds_no_id_in_the_traffic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads every message of a run, and knows all ids and even the job's key: no word of a hash is there."""
    sent: list[bytes] = []
    keyed: list[np.ndarray] = []

    def recorded(arrays: Arrays) -> pa.Buffer:
        sent.append(b"".join(np.ascontiguousarray(each).tobytes() for each in arrays.values()))
        return to_stream(arrays)

    def hashed(key: bytes, hashes: IdHashes) -> IdHashes:
        keyed.append(hash_under_key(key, hashes))
        return keyed[-1]

    monkeypatch.setattr("veilmeans.io.exchange.exchange.to_stream", recorded)
    monkeypatch.setattr(align_passes, "hash_under_key", hashed)
    world = world_of(tmp_path, [shuffled(range(300), 1), shuffled(range(150, 450), 2)])
    assert [each.rows for each in run_in_threads(run_align, world.configs)] == [150, 150]
    dictionary = np.concatenate(keyed)
    assert len(np.unique(dictionary[:, 0])) == 450
    texts = [f"c{each}".encode() for each in range(100, 450)]
    plain = hash_texts(np.frombuffer(b"".join(texts), np.uint8), np.cumsum([0, *map(len, texts)]))
    words = {word for hashes in (dictionary, plain) for word in hashes.ravel().tolist()}
    assert sum(map(len, sent)) > 50_000
    for content in sent:
        found = np.frombuffer(content[: len(content) // 8 * 8], np.uint64)
        assert not words & set(found.tolist())
    spoilt = np.frombuffer(sent[0] + bytes(-len(sent[0]) % 8) + plain[7].tobytes(), np.uint64)
    assert words & set(spoilt.tolist())  # a hash that is sent would be found


STRIKES = {
    "payco": [at_rename("outputs/"), at_rename("manifest.json")],
    "shop": [at_rename("vole/"), Strike("making", 1, "shutil.rmtree")],
}


@pytest.mark.slow
@pytest.mark.processes
def test_killed_parties_resume_to_one_order(tmp_path: Path) -> None:
    sets = [shuffled(range(50), 1), shuffled(range(25, 100), 2)]
    world = world_of(tmp_path, sets)
    under_strikes(world, STRIKES, "align")
    assert aligned_ids(world, "payco") == aligned_ids(world, "shop")
    assert set(aligned_ids(world, "payco")) == set(range(25, 50))
    before = [load_alignment(world[name]) for name in BOTH]
    ended = run_all("align", world.configs, tmp_path)
    assert [code for code, _ in ended.values()] == [0, 0]
    assert [load_alignment(world[name]) for name in BOTH] == before
    assert all(isinstance(each, Alignment) for each in before)
