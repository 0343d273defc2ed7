"""Packing against integers: edges, negative products, the largest allowed values, and one more than those."""

from itertools import chain
from typing import Any

import numpy as np
import pytest
from gmpy2 import mpz
from hypothesis import given, settings
from hypothesis import strategies as st

from veilmeans.crypto.he.packing import SlotLayout, fit_slots

any_slots = st.builds(SlotLayout, st.integers(64, 150), st.integers(2, 80), st.integers(1, 6))
words = st.sampled_from([0, 1, 2**63, 2**64 - 1]) | st.integers(0, 2**64 - 1)


def table(data: st.DataObject, slots: SlotLayout, values: st.SearchStrategy[int]) -> list[list[int]]:
    """Some rows of one value per slot."""
    return data.draw(st.lists(st.lists(values, min_size=slots.count, max_size=slots.count), max_size=3))


def array(rows: list[list[int]], slots: SlotLayout) -> Any:
    return np.array(rows, np.uint64).reshape(len(rows), slots.count)


def plain(row: list[int], slots: SlotLayout) -> mpz:
    return mpz(sum(value << (slot * slots.width) for slot, value in enumerate(row)))


@settings(deadline=None)
@given(any_slots, st.data())
def test_values_are_packed_at_multiples_of_the_width_and_come_back(slots: SlotLayout, data: st.DataObject) -> None:
    rows = table(data, slots, words)
    packed = slots.pack(array(rows, slots))
    assert packed == [plain(row, slots) for row in rows]
    assert all(each < 2**slots.bits for each in packed)
    np.testing.assert_array_equal(slots.unpack(packed), array(rows, slots), strict=True)


@settings(deadline=None)
@given(any_slots)
def test_a_slot_holds_the_largest_masked_product(slots: SlotLayout) -> None:
    assert slots.width % 8 == 0
    assert slots.bound + slots.sigma + 1 <= slots.width < slots.bound + slots.sigma + 9
    assert 8 * (slots.mask_bytes - 1) < slots.bound + slots.sigma <= 8 * slots.mask_bytes
    assert (2**slots.bound - 1) + 2**slots.bound + (2 ** (slots.bound + slots.sigma) - 1) < 2**slots.width


@settings(deadline=None)
@given(any_slots, st.data())
def test_masked_products_of_both_signs_are_shared(slots: SlotLayout, data: st.DataObject) -> None:
    top = 2**slots.bound - 1
    products = table(data, slots, st.sampled_from([-top, -1, 0, top]) | st.integers(-top, top))
    edge = st.sampled_from([b"\0", b"\xff"]).map(lambda byte: byte * slots.mask_bytes)
    one = edge | st.binary(min_size=slots.mask_bytes, max_size=slots.mask_bytes)
    random = [data.draw(one) for _ in range(len(products) * slots.count)]
    shape = (len(products), slots.count, slots.mask_bytes)
    plains, masks = slots.masks(np.frombuffer(b"".join(random), np.uint8).reshape(shape))

    integers = [int.from_bytes(each, "little") % 2 ** (slots.bound + slots.sigma) for each in random]
    np.testing.assert_array_equal(masks.ravel(), np.array([each % 2**64 for each in integers], np.uint64), strict=True)
    masked = [mask + plain(row, slots) for mask, row in zip(plains, products, strict=True)]
    opened = [value + each + 2**slots.bound for value, each in zip(chain(*products), integers, strict=True)]
    rows = [opened[start : start + slots.count] for start in range(0, len(opened), slots.count)]
    assert masked == [plain(row, slots) for row in rows]

    residues = [[value % 2**64 for value in row] for row in products]
    np.testing.assert_array_equal(slots.unpack(masked) - masks, array(residues, slots), strict=True)


def test_masks_do_not_change_their_random_bytes() -> None:
    slots = SlotLayout(bound=65, sigma=40, count=2)
    random = np.full((1, 2, slots.mask_bytes), 255, np.uint8)
    random.flags.writeable = False
    plains, masks = slots.masks(random)
    assert plains == [plain([2**105 - 1 + 2**65] * 2, slots)]
    assert (masks == 2**64 - 1).all()


@settings(deadline=None)
@given(any_slots, st.data())
def test_a_slot_one_above_the_bound_is_refused(slots: SlotLayout, data: st.DataObject) -> None:
    limit = 2 ** (slots.bound + 1) + 2 ** (slots.bound + slots.sigma)
    slot = data.draw(st.integers(0, slots.count - 1))
    row = [0] * slots.count
    if limit < 2**slots.width:
        row[slot] = limit
        assert slots.unpack([plain(row, slots)])[0, slot] == limit % 2**64
    above = [each for each in (limit + 1, limit + 2**64, 2**slots.width - 1) if limit < each < 2**slots.width]
    for each in above:
        row[slot] = each
        with pytest.raises(ValueError, match="above the bound") as caught:
            slots.unpack([mpz(0), plain(row, slots)])
        assert not any(letter.isdigit() for letter in str(caught.value))


@pytest.mark.parametrize("bad", [2**240, 2**2000, -1])
def test_a_plaintext_with_too_many_bits_is_refused(bad: int) -> None:
    slots = SlotLayout(bound=70, sigma=40, count=2)
    assert slots.bits == 224
    with pytest.raises(ValueError, match="above the bound"):
        slots.unpack([mpz(bad)])


def test_packing_no_rows_gives_no_plaintexts() -> None:
    slots = SlotLayout(bound=70, sigma=40, count=3)
    assert slots.pack(np.zeros((0, 3), np.uint64)) == []
    assert slots.unpack([]).shape == (0, 3)
    plains, masks = slots.masks(np.zeros((0, 3, slots.mask_bytes), np.uint8))
    assert (plains, masks.shape) == ([], (0, 3))


def test_rows_of_a_wrong_length_are_refused() -> None:
    with pytest.raises(ValueError, match="3 slots, not 2"):
        SlotLayout(bound=70, sigma=40, count=3).pack(np.zeros((1, 2), np.uint64))


@settings(deadline=None)
@given(st.integers(100, 3000), st.integers(64, 120), st.integers(2, 64), st.integers(1, 20))
def test_as_many_slots_fit_as_the_capacity_allows(capacity: int, bound: int, sigma: int, max_count: int) -> None:
    one = SlotLayout(bound, sigma, 1).width
    if capacity < one:
        with pytest.raises(ValueError, match="no room"):
            fit_slots(capacity, bound, sigma, max_count)
    else:
        slots = fit_slots(capacity, bound, sigma, max_count)
        assert (slots.bound, slots.sigma) == (bound, sigma)
        assert slots.bits <= capacity
        assert slots.count == max_count or slots.bits + one > capacity


@pytest.mark.parametrize(("bound", "sigma", "count"), [(63, 40, 1), (64, 1, 1), (64, 40, 0)])
def test_impossible_slot_layouts_are_refused(bound: int, sigma: int, count: int) -> None:
    with pytest.raises(ValueError, match="slots need"):
        SlotLayout(bound, sigma, count)
