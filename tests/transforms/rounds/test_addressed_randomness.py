"""The randomness of a round: own masks, and shares of every kind of correlation."""

from pathlib import Path

import numpy as np
import pytest

from veilmeans.crypto import ring
from veilmeans.crypto.correlations import (
    BitProducts,
    DaBit,
    Inject,
    Kind,
    MatMul,
    Mul,
    Operand,
    ProductGroups,
    Trunc,
    find_part,
)
from veilmeans.io.storage.triple_store import Manifest, StoreRun, TripleStore
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Array
from veilmeans.schemas.errors import StorageError
from veilmeans.schemas.run_folder import StoreFolder
from veilmeans.transforms.offline.dealer import deal_corrections, expected_corrections
from veilmeans.transforms.rounds.addressed_randomness import AddressedRandomness
from veilmeans.transforms.rounds.interfaces import CorrelationNeed
from veilmeans.transforms.rounds.trace import ShapeRecorder

HERE = Address("run", 0, "multiply.00.multiply", 4)
SHAPE = (5, 2)
FIXED = "cross.00.mask"
PRODUCTS = (ProductGroups(2, 2, ((((0,), (1,)),),)), ProductGroups(1, 4, ((((0,), (1,)), ((1, 3), (2,))),)))
KINDS: dict[str, Kind] = {
    "mul of 2": Mul(2, SHAPE),
    "mul of 3": Mul(3, SHAPE),
    "mul of 4": Mul(4, SHAPE),
    "bits of 2": BitProducts(2, 2, PRODUCTS),
    "bits of 3": BitProducts(3, 2, PRODUCTS),
    "known bits": BitProducts(2, 2, PRODUCTS, known=True),
    "inject of 2": Inject(2, 13),
    "inject of 4": Inject(4, 8),
    "dabit": DaBit(3, 9),
    "trunc": Trunc(3, 7, 20),
    "matmul": MatMul(0, 1, rows=4, inner=3, columns=2, fixed_stage=FIXED),
    "matmul back": MatMul(2, 0, rows=4, inner=3, columns=2, fixed_stage=FIXED, transposed=True),
}


def stores(folder: Path, parties: int, kind: Kind, number: int = 0) -> list[StoreRun]:
    """Deal each party's triple store for `HERE`, claimed as run `number`."""
    seeds = [bytes([i]) * 32 for i in range(parties)]
    manifest = Manifest("october", runs=number + 1, iterations=1, rows=5, plan="")
    created = [TripleStore.create(StoreFolder(folder / str(i)), manifest, seed) for i, seed in enumerate(seeds)]
    needs = {HERE.stage: (CorrelationNeed("", kind),)}
    dealt = deal_corrections(seeds, "october", number, HERE, needs)
    for party, arrays in dealt.items():
        created[party].write_corrections(number, HERE.iteration, HERE.shard, arrays)
        expected = expected_corrections(party, needs)
        assert {n: (a.shape, a.dtype) for n, a in arrays.items()} == {
            n: (a.shape, a.dtype) for n, a in expected.items()
        }
    for store in created:
        store.complete()
    return [store.claim(number, "run", "data") for store in created]


def shares_of(runs: list[StoreRun], kind: Kind) -> dict[str, list[Array]]:
    """List the shares of each part's holders, by part."""
    each = [AddressedRandomness(i, b"s" * 32, run, HERE) for i, run in enumerate(runs)]
    return {
        part.name: [each[i].correlated(kind, part.name) for i in part.holders]
        for part in (*kind.uniform_parts(), *kind.determined_parts())
    }


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_values_of_all_shares_obey_the_relation_of_the_kind(tmp_path: Path, kind: Kind) -> None:
    shares = shares_of(stores(tmp_path, 4, kind), kind)
    parts = {part.name: part for part in (*kind.uniform_parts(), *kind.determined_parts())}
    values = {name: parts[name].reconstruct(arrays) for name, arrays in shares.items()}
    for name, value in kind.determine({part.name: values[part.name] for part in kind.uniform_parts()}).items():
        np.testing.assert_array_equal(values[name], value)
    for name, arrays in shares.items():
        assert all((array.shape, array.dtype) == (parts[name].shape, parts[name].dtype) for array in arrays)
    drawn = [array.tobytes() for arrays in shares.values() for array in arrays]
    assert len(set(drawn)) == len(drawn)


@pytest.mark.parametrize("parties", [2, 3, 4])
def test_triples_of_all_parties_multiply(tmp_path: Path, parties: int) -> None:
    shares = shares_of(stores(tmp_path, parties, Mul(parties, SHAPE)), Mul(parties, SHAPE))
    a, b, c = (ring.total(shares[part]) for part in "abc")
    np.testing.assert_array_equal(c, a * b)
    assert len({part.tobytes() for arrays in shares.values() for part in arrays}) == 3 * parties


def test_triples_are_the_same_when_the_store_is_opened_again(tmp_path: Path) -> None:
    kind = Mul(3, SHAPE)
    for i, run in enumerate(stores(tmp_path, 3, kind)):
        again = StoreRun(TripleStore.open(StoreFolder(tmp_path / str(i))), 0)
        assert (again.seed, again.store.manifest) == (run.seed, run.store.manifest)
        assert again.store.has_corrections(0, HERE.iteration, HERE.shard) == (i == 2)
        for part in "abc":
            np.testing.assert_array_equal(
                AddressedRandomness(i, b"", run, HERE).correlated(kind, part),
                AddressedRandomness(i, b"", again, HERE).correlated(kind, part),
            )


def test_correlations_depend_on_store_and_claimed_number_but_not_on_the_runs_name(tmp_path: Path) -> None:
    kind = Mul(2, SHAPE)
    store = stores(tmp_path, 2, kind)[0].store
    other = TripleStore(StoreFolder(tmp_path), Manifest("november", 1, 1, 5, ""), store.seed)
    renamed = Address("other", HERE.iteration, HERE.stage, HERE.shard)
    asked = [
        (StoreRun(store, 0), HERE),
        (StoreRun(store, 1), HERE),
        (StoreRun(other, 0), HERE),
        (StoreRun(store, 0), renamed),
    ]
    drawn = [AddressedRandomness(0, b"", run, where).correlated(kind, "a").tobytes() for run, where in asked]
    assert len(set(drawn)) == 3
    assert drawn[0] == drawn[3]


def test_a_part_with_a_fixed_stage_is_the_same_in_all_iterations_and_stages(tmp_path: Path) -> None:
    kind = MatMul(0, 1, rows=4, inner=3, columns=2, fixed_stage=FIXED)
    mask = Operand(0, 1, (4, 3), FIXED)
    run = stores(tmp_path, 2, kind)[0]
    later = Address("run", 9, "cross.07.multiply", HERE.shard)
    elsewhere = Address("run", 0, FIXED, HERE.shard + 1)
    first = AddressedRandomness(0, b"", run, Address("run", 0, FIXED, HERE.shard)).correlated(mask, "u")
    np.testing.assert_array_equal(AddressedRandomness(0, b"", run, later).scoped("1/").correlated(kind, "u"), first)
    assert not np.array_equal(AddressedRandomness(0, b"", run, elsewhere).correlated(mask, "u"), first)


def test_a_missing_correction_is_named(tmp_path: Path) -> None:
    kind = Mul(2, SHAPE)
    last = stores(tmp_path, 2, kind)[1]
    for where, named in (
        (Address("run", 0, HERE.stage, 5), r"5\.arrow .*/corrections/0/0"),
        (Address("run", 0, "other", 4), "other:mul.c"),
    ):
        with pytest.raises(StorageError, match=named):
            AddressedRandomness(1, b"", last, where).correlated(kind, "c")


def test_a_part_that_the_party_does_not_hold_is_refused(tmp_path: Path) -> None:
    kind = BitProducts(2, 2, PRODUCTS, known=True)
    runs = stores(tmp_path, 3, kind)
    for party, part in ((1, "mask0"), (0, "mask1"), (2, "sums")):
        with pytest.raises(ValueError, match=rf"party {party} .*bits\.{part}"):
            AddressedRandomness(party, b"", runs[party], HERE).correlated(kind, part)


def test_a_mask_label_used_twice_in_a_round_is_refused() -> None:
    randomness = AddressedRandomness(0, b"s" * 32, None, HERE)
    first, second = randomness.uniform("a", SHAPE), randomness.uniform("b", SHAPE)
    assert not np.array_equal(first, second)
    for again in (randomness, randomness.scoped("")):
        with pytest.raises(ValueError, match=r"'a' of run/0/multiply\.00\.multiply/4"):
            again.uniform("a", SHAPE)
    assert not np.array_equal(randomness.scoped("0/").uniform("a", SHAPE), first)
    with pytest.raises(ValueError, match=r"'0/a' of run/0/multiply\.00\.multiply/4"):
        randomness.scoped("0/").uniform("a", SHAPE)


def test_two_kinds_of_one_name_in_a_round_are_refused_and_one_kind_again_is_the_same(tmp_path: Path) -> None:
    kind = Mul(2, SHAPE)
    randomness = AddressedRandomness(0, b"s" * 32, stores(tmp_path, 2, kind)[0], HERE)
    first = randomness.correlated(kind, "a")
    np.testing.assert_array_equal(randomness.correlated(Mul(2, SHAPE), "a"), first)
    with pytest.raises(ValueError, match=r"two kinds 'mul' .* run/0/multiply\.00\.multiply/4"):
        randomness.correlated(Mul(2, (5, 3)), "a")
    with pytest.raises(ValueError, match="two kinds 'mul'"):
        randomness.scoped("").correlated(Mul(2, (4,)), "b")
    scoped = [randomness.scoped(scope).correlated(kind, "a") for scope in ("0/", "1/")]
    assert len({array.tobytes() for array in (first, *scoped)}) == 3


def test_correlations_without_a_store_are_refused() -> None:
    with pytest.raises(ValueError, match=r"stage multiply\.00\.multiply"):
        AddressedRandomness(0, b"s" * 32, None, HERE).correlated(Mul(2, SHAPE), "a")


def test_a_trace_records_needs_and_draws_nothing() -> None:
    recorder = ShapeRecorder()
    assert not recorder.uniform("a", SHAPE).any()
    kind, bits = Mul(2, (3, 1)), BitProducts(2, 3, PRODUCTS)
    for part in "abc":
        share = recorder.correlated(kind, part)
        assert (share.shape, share.dtype) == ((3, 1), np.uint64)
        assert not share.any()
    assert recorder.scoped("0/").scoped("1/").correlated(bits, "sums").shape == (3, 3)
    assert list(recorder.needs) == [CorrelationNeed("", kind), CorrelationNeed("0/1/", bits)]
    assert [need.label("a") for need in recorder.needs] == ["mul.a", "0/1/bits.a"]
    assert find_part(bits, "sums") == bits.determined_parts()[0]
