"""Every kind of correlation: the values that the parties' shares add up to obey its relation, in Python's integers."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import reduce
from operator import xor

import numpy as np
import pytest

from veilmeans.crypto import prg
from veilmeans.crypto.correlations import (
    BitProducts,
    CorrelationPart,
    DaBit,
    Inject,
    Kind,
    MatMul,
    Mul,
    Operand,
    ProductGroups,
    Sum,
    Trunc,
    compute_corrections,
    expand_share,
)
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Array

MODULUS = 2**64
HERE = Address("store.0", 3, "p.02.r", 5)
COUNTS = [1, 7, 8, 9]
Values = Mapping[str, Array]


def seeds(parties: int) -> list[bytes]:
    return [prg.derive(b"correlations", str(i)) for i in range(parties)]


def shares_of(kind: Kind, parties: int, address: Address = HERE, scope: str = "") -> dict[str, dict[int, Array]]:
    """Part -> holder -> share: expanded, or a correction for the last holder of a determined part."""
    own = seeds(parties)
    corrected = compute_corrections(own, address, scope, kind)
    assert set(corrected) == set(kind.determined_parts())
    result: dict[str, dict[int, Array]] = {}
    for part in (*kind.uniform_parts(), *kind.determined_parts()):
        shares = {i: expand_share(own[i], address, scope, kind, part) for i in part.holders}
        if part in corrected:
            shares[part.holders[-1]] = corrected[part]
        for share in shares.values():
            assert (share.shape, share.dtype) == (part.shape, part.dtype)
        result[part.name] = shares
    return result


def values_of(kind: Kind, parties: int, address: Address = HERE, scope: str = "") -> dict[str, Array]:
    shares = shares_of(kind, parties, address, scope)
    return {
        part.name: part.reconstruct(list(shares[part.name].values()))
        for part in (*kind.uniform_parts(), *kind.determined_parts())
    }


def flat(array: Array) -> list[int]:
    return [int(value) for value in array.reshape(-1)]


def bit_list(packed: Array, count: int) -> list[int]:
    """Bit j of word w belongs to value w + j·W."""
    return [int(packed[i % len(packed)]) >> (i // len(packed)) & 1 for i in range(count)]


def is_product(_: Kind, v: Values) -> None:
    assert flat(v["c"]) == [a * b % MODULUS for a, b in zip(flat(v["a"]), flat(v["b"]), strict=True)]


def is_sum_of_products(kind: BitProducts, v: Values) -> None:
    """Each determined plane is the XOR of the described products, word by word, in Python's integers."""
    parts = [v[f"mask{i}"] for i in range(2)] if kind.known else [v["mask"]]
    rows, starts = iter(v["sums"].tolist()), [0] * len(parts)
    for groups in kind.groups:
        each = groups.masks // len(parts)
        for _ in range(groups.count):
            masks = [row for i, part in enumerate(parts) for row in part[starts[i] : starts[i] + each].tolist()]
            starts = [start + each for start in starts]
            for products in groups.sums:
                for word, found in enumerate(next(rows)):
                    assert found == expected_sum(products, [row[word] for row in masks])
    assert next(rows, None) is None


def expected_sum(products: Sum, masks: list[int]) -> int:
    total = 0
    for factors in products:
        value = MODULUS - 1
        for factor in factors:
            value &= reduce(xor, (masks[i] for i in factor))
        total ^= value
    return total


PAIR, TRIPLE = (((0,), (1,)),), (((0,), (1,), (2,)), ((0, 2),))
GROUPS = (
    (ProductGroups(1, 2, (PAIR,)),),
    (ProductGroups(1, 4, (PAIR, TRIPLE)), ProductGroups(3, 2, (PAIR, (((0, 1),),)))),
)


def is_injection(kind: Inject, v: Values) -> None:
    r = bit_list(v["bit"], kind.count)
    assert flat(v["r"]) == r
    assert flat(v["ra"]) == [b * a for b, a in zip(r, flat(v["a"]) * kind.times, strict=True)]


def is_dabit(kind: DaBit, v: Values) -> None:
    assert flat(v["r"]) == bit_list(v["bit"], kind.count)


def is_truncation(kind: Trunc, v: Values) -> None:
    r = flat(v["r"])
    assert flat(v["high"]) == [value >> kind.shift for value in r]
    assert flat(v["top"]) == [value >> 63 for value in r]


def is_operand(kind: Operand, v: Values) -> None:
    assert set(v) == {"u"}
    assert v["u"].shape == kind.shape


def is_matrix_product(kind: MatMul, v: Values) -> None:
    u = (v["u"].T if kind.transposed else v["u"]).tolist()
    columns = list(zip(*v["v"].tolist(), strict=True))
    expected = [[sum(a * b for a, b in zip(row, c, strict=True)) % MODULUS for c in columns] for row in u]
    assert v["w"].tolist() == expected
    assert v["w"].shape == (kind.rows, kind.columns)


Check = Callable[..., None]


def kinds(parties: int, n: int) -> list[tuple[Kind, Check]]:
    """List every kind for arrays of size n, with the check of its relation."""
    owner, peer = parties - 1, 0
    return [
        (Mul(parties, (n,)), is_product),
        (Mul(parties, (n, 3)), is_product),
        *((BitProducts(parties, n, groups), is_sum_of_products) for groups in GROUPS),
        *((BitProducts(2, n, groups, known=True), is_sum_of_products) for groups in GROUPS),
        (Inject(parties, n), is_injection),
        (Inject(parties, 3 * n, times=3), is_injection),
        (Inject(parties, n, np.uint32), is_injection),
        (DaBit(parties, n), is_dabit),
        *((Trunc(parties, n, shift), is_truncation) for shift in (1, 20, 61)),
        (Operand(owner, peer, (n, 2), "operand"), is_operand),
        (MatMul(owner, peer, n, 3, 2, "operand"), is_matrix_product),
        (MatMul(peer, owner, n, 3, 2, "operand"), is_matrix_product),
        (MatMul(owner, peer, 3, n, 2, "operand", transposed=True), is_matrix_product),
        (MatMul(peer, owner, n, 2, 3, "operand", transposed=True), is_matrix_product),
    ]


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("parties", [2, 3, 4])
def test_values_of_all_shares_obey_the_relation(parties: int, count: int) -> None:
    for kind, check in kinds(parties, count):
        for scope in ("", "1/"):
            check(kind, values_of(kind, parties, HERE, scope))


@pytest.mark.parametrize("parties", [2, 3])
def test_matrix_product_large_enough_for_the_compiled_loop(parties: int) -> None:
    for transposed in (False, True):
        kind = MatMul(0, parties - 1, 50, 20, 30, "operand", transposed)
        is_matrix_product(kind, values_of(kind, parties))


@pytest.mark.parametrize("parties", [2, 3, 4])
def test_each_part_has_the_right_holders(parties: int) -> None:
    everyone, two = set(range(parties)), {0, parties - 1}
    for kind, _ in kinds(parties, 9):
        holders = {part.name: set(part.holders) for part in (*kind.uniform_parts(), *kind.determined_parts())}
        if isinstance(kind, BitProducts) and kind.known:
            assert holders == {"mask0": {0}, "mask1": {1}, "sums": {0, 1}}
        elif isinstance(kind, Operand):
            assert holders == {"u": {kind.owner}}
        elif isinstance(kind, MatMul):
            assert holders == {"u": {kind.owner}, "v": {kind.peer}, "w": two}
        else:
            assert all(each == everyone for each in holders.values())


def bits_set(array: Array) -> float:
    return float(np.unpackbits(np.ascontiguousarray(array).view(np.uint8)).mean())


@pytest.mark.parametrize("parties", [2, 3, 4])
def test_corrections_and_all_other_shares_look_uniform(parties: int) -> None:
    """At least 4,096 bits, so ten deviations of their mean are 0.08; an unmasked part would be far off."""
    for kind, _ in kinds(parties, 4096):
        for name, shares in shares_of(kind, parties).items():
            for i, share in shares.items():
                tolerance = max(5 / share.nbytes**0.5, 0.01)
                assert abs(bits_set(share) - 0.5) < tolerance, (kind, name, i)
                if share.dtype == np.uint64:
                    for byte in np.ascontiguousarray(share).reshape(-1, 1).view(np.uint8).T:
                        assert abs(bits_set(byte) - 0.5) < 5 / byte.size**0.5, (kind, name, i)


def share_bytes(kind: Kind, parties: int, address: Address, scope: str, skip: str = "") -> set[bytes]:
    """All shares of all parts, as bytes."""
    parts = shares_of(kind, parties, address, scope)
    return {share.tobytes() for name, shares in parts.items() if name != skip for share in shares.values()}


@pytest.mark.parametrize("parties", [2, 3])
def test_shares_differ_between_parts_parties_addresses_and_scopes(parties: int) -> None:
    addresses = [
        (HERE, ""),
        (HERE, "0/"),
        (HERE, "1/"),
        (HERE, "1/1/"),
        (replace(HERE, run="store.1"), ""),
        (replace(HERE, run="other.0"), ""),
        (replace(HERE, iteration=4), ""),
        (replace(HERE, stage="p.03.r"), ""),
        (replace(HERE, shard=6), ""),
    ]
    for kind, _ in kinds(parties, 200):
        parts = [part for part in (*kind.uniform_parts(), *kind.determined_parts()) if part.fixed_stage is None]
        shares_per_address = sum(len(part.holders) for part in parts)
        drawn = [share_bytes(kind, parties, address, scope, skip="u") for address, scope in addresses]
        assert len(set().union(*drawn)) == shares_per_address * len(addresses), kind


def test_kinds_in_one_round_have_different_randomness() -> None:
    every = [
        Mul(3, (64,)), BitProducts(3, 64, GROUPS[1]),
        Inject(3, 64), DaBit(3, 64), Trunc(3, 64, 20),
        *(MatMul(i, j, 8, 8, 8, "operand") for i in range(3) for j in range(3) if i != j),
    ]  # fmt: skip
    assert len({kind.name for kind in every}) == len(every)
    drawn = [share.tobytes()[:8] for kind in every for each in shares_of(kind, 3).values() for share in each.values()]
    assert len(set(drawn)) == len(drawn)


@pytest.mark.parametrize("transposed", [False, True])
def test_a_fixed_operand_is_the_same_in_every_iteration_stage_and_scope(transposed: bool) -> None:
    shape = (9, 4)
    operand = Operand(0, 1, shape, "operand")
    (mask,) = operand.uniform_parts()
    own = seeds(2)[0]
    expected = expand_share(own, replace(HERE, iteration=0, stage="p.00.operand"), "", operand, mask)
    rows, inner = shape[::-1] if transposed else shape
    kind = MatMul(0, 1, rows, inner, 2, "operand", transposed)
    u, v = kind.uniform_parts()
    products = []
    for address in (HERE, replace(HERE, iteration=8), replace(HERE, stage="q.09.s")):
        for scope in ("", "1/"):
            values = values_of(kind, 2, address, scope)
            np.testing.assert_array_equal(values["u"], expected)
            np.testing.assert_array_equal(expand_share(own, address, scope, kind, u), expected)
            is_matrix_product(kind, values)
            products.append(values["v"].tobytes())
    assert len(set(products)) == 6
    assert v.fixed_stage is None


def test_a_fixed_operand_differs_between_runs_shards_owners_and_peers() -> None:
    drawn = []
    for address in (HERE, replace(HERE, run="store.1"), replace(HERE, shard=6)):
        for owner, peer in ((0, 1), (0, 2), (1, 0)):
            kind = Operand(owner, peer, (3, 3), "operand")
            drawn.append(values_of(kind, 3, address)["u"].tobytes())
    assert len(set(drawn)) == len(drawn)
    part = CorrelationPart("u", (3, 3), (0,), fixed_stage="a")
    assert expand_share(seeds(1)[0], HERE, "", Operand(0, 1, (3, 3), "a"), part).tobytes() not in drawn


def test_a_part_is_reconstructed_and_completed_by_sum_or_by_xor() -> None:
    one, other = np.array([2**63, 5], np.uint64), np.array([2**63 + 1, 6], np.uint64)
    by_sum, by_xor = CorrelationPart("a", (2,), (0, 1)), CorrelationPart("a", (2,), (0, 1), "xor")
    assert by_sum.reconstruct([one, other]).tolist() == [1, 11]
    assert by_xor.reconstruct([one, other]).tolist() == [1, 3]
    assert by_sum.last_share(other, [one]).tolist() == [1, 1]
    assert by_sum.last_share(one, [other]).tolist() == [MODULUS - 1, MODULUS - 1]
    assert by_xor.last_share(one, [other, other]).tolist() == one.tolist()
    for part in (by_sum, by_xor):
        assert part.last_share(one, []).tolist() == one.tolist()
