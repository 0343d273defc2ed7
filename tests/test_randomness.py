"""The randomness of a round, and the triple store behind it."""

from pathlib import Path

import numpy as np
import pytest

from parties import mode_of
from veilmeans.crypto import ring
from veilmeans.io.triples import TripleStore
from veilmeans.schemas.address import Address
from veilmeans.schemas.errors import ConfigError, StorageError
from veilmeans.transforms.deal import mul_correction
from veilmeans.transforms.randomness import AddressedRandomness, ShapeRecorder

HERE = Address("run", 0, "multiply.00.multiply", 4)
SHAPE = (5, 2)


def stores(folder: Path, parties: int) -> list[TripleStore]:
    """What a dealer gives each party for `HERE`."""
    seeds = [bytes([i]) * 32 for i in range(parties)]
    last = parties - 1
    made = [TripleStore.create(folder / str(i), seed, corrected=i == last) for i, seed in enumerate(seeds)]
    made[last].write_correction(HERE, {"mul.c": mul_correction(seeds, HERE, SHAPE)})
    return made


@pytest.mark.parametrize("parties", [2, 3, 4])
def test_triples_of_all_parties_multiply(tmp_path: Path, parties: int) -> None:
    shares = [AddressedRandomness(b"s" * 32, store, HERE).mul(SHAPE) for store in stores(tmp_path, parties)]
    a, b, c = (ring.total(part) for part in zip(*shares, strict=True))
    np.testing.assert_array_equal(c, a * b)
    assert len({part.tobytes() for share in shares for part in share}) == 3 * parties


def test_triples_come_back_from_disk(tmp_path: Path) -> None:
    for i, store in enumerate(stores(tmp_path, 3)):
        again = TripleStore.open(tmp_path / str(i))
        assert (again.seed, again.corrected) == (store.seed, i == 2)
        for part, same in zip(
            AddressedRandomness(b"", store, HERE).mul(SHAPE),
            AddressedRandomness(b"", again, HERE).mul(SHAPE),
            strict=True,
        ):
            np.testing.assert_array_equal(part, same)


def test_a_store_keeps_its_seed_to_itself(tmp_path: Path) -> None:
    stores(tmp_path, 2)
    assert mode_of(tmp_path / "0" / "seed") == 0o600
    assert mode_of(tmp_path / "1" / "seed.corrected") == 0o600
    assert mode_of(tmp_path / "0") == 0o700
    (tmp_path / "0" / "seed").chmod(0o644)
    with pytest.raises(ConfigError, match="has mode 0644"):
        TripleStore.open(tmp_path / "0")


def test_another_seed_does_not_replace_the_first(tmp_path: Path) -> None:
    TripleStore.create(tmp_path, b"a" * 32, corrected=False)
    TripleStore.create(tmp_path, b"a" * 32, corrected=False)
    with pytest.raises(StorageError, match="not overwritten"):
        TripleStore.create(tmp_path, b"b" * 32, corrected=False)


def test_a_missing_store_and_a_missing_correction_are_told(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="has the dealer run"):
        TripleStore.open(tmp_path)
    other = Address("run", 0, HERE.stage, 5)
    with pytest.raises(StorageError, match=r"no correction for run/0/multiply\.00\.multiply/5"):
        AddressedRandomness(b"", stores(tmp_path, 2)[1], other).mul(SHAPE)


def test_a_mask_label_used_twice_in_a_round_is_refused() -> None:
    randomness = AddressedRandomness(b"s" * 32, None, HERE)
    first, second = randomness.uniform("a", SHAPE), randomness.uniform("b", SHAPE)
    assert not np.array_equal(first, second)
    with pytest.raises(ValueError, match=r"'a' of run/0/multiply\.00\.multiply/4 is asked for twice"):
        randomness.uniform("a", SHAPE)


def test_triples_asked_for_twice_in_a_round_are_refused(tmp_path: Path) -> None:
    randomness = AddressedRandomness(b"s" * 32, stores(tmp_path, 2)[0], HERE)
    randomness.mul(SHAPE)
    with pytest.raises(ValueError, match="asked for twice"):
        randomness.mul(SHAPE)


def test_triples_without_a_store_are_refused() -> None:
    with pytest.raises(ValueError, match="no store was given"):
        AddressedRandomness(b"s" * 32, None, HERE).mul(SHAPE)


def test_a_trace_records_what_was_asked_for_and_draws_nothing() -> None:
    recorder = ShapeRecorder()
    assert not recorder.uniform("a", SHAPE).any()
    assert all(part.shape == (3, 1) and not part.any() for part in recorder.mul((3, 1)))
    assert recorder.mul_shapes == [(3, 1)]
