"""SHARE, MULTIPLY, REVEAL and the product of sums: against Python's integers, and what the peers see of them."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.parties import NAMES, Shards, joined, run_parties, split
from support.uniformity import LIMIT, chi_square
from veilmeans.crypto import ring
from veilmeans.schemas.arrays import Array, Arrays, from_stream
from veilmeans.schemas.errors import RefusedError
from veilmeans.schemas.party import Party
from veilmeans.transforms.kmeans.column_sums import product_protocol
from veilmeans.transforms.primitives.multiply import MULTIPLY
from veilmeans.transforms.primitives.share_and_open import OPEN, SHARE
from veilmeans.transforms.rounds.protocol import Inbox, Protocol
from veilmeans.transforms.rounds.trace import ShapeRecorder

MODULUS = 2**64
EDGES = [0, 1, 2**63 - 1, 2**63, 2**63 + 1, MODULUS - 1]
elements = st.sampled_from(EDGES) | st.integers(0, MODULUS - 1)
a_few = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def as_ring(values: object) -> ring.Ring:
    return np.array(values, ring.DTYPE)


def shared(values: dict[str, ring.Ring], parties: int) -> list[dict[int, Arrays]]:
    """Each party's state with its shares of `values`, as shard 0."""
    shares = {name: split(value, parties, seed) for seed, (name, value) in enumerate(values.items())}
    return [{0: {name: share[i] for name, share in shares.items()}} for i in range(parties)]


def multiplied(x: Sequence[int], y: Sequence[int], parties: int, folder: Path) -> list[int]:
    states, _ = run_parties(MULTIPLY, shared({"x": as_ring(x), "y": as_ring(y)}, parties), folder)
    product: list[int] = joined(states, 0).tolist()
    return product


@pytest.mark.parametrize("parties", [2, 3, 4])
def test_extreme_values_are_multiplied(tmp_path: Path, parties: int) -> None:
    pairs = [(x, y) for x in EDGES for y in EDGES]
    x, y = zip(*pairs, strict=True)
    assert multiplied(x, y, parties, tmp_path) == [a * b % MODULUS for a, b in pairs]


@a_few
@given(st.lists(st.tuples(elements, elements), max_size=8), st.integers(2, 4))
def test_any_values_are_multiplied(tmp_path: Path, pairs: list[tuple[int, int]], parties: int) -> None:
    x, y = [a for a, _ in pairs], [b for _, b in pairs]
    assert multiplied(x, y, parties, tmp_path) == [a * b % MODULUS for a, b in pairs]


@a_few
@given(st.lists(elements, max_size=8), st.integers(2, 4))
def test_revealing_gives_the_value_to_all(tmp_path: Path, values: list[int], parties: int) -> None:
    states, _ = run_parties(OPEN, shared({"x": as_ring(values)}, parties), tmp_path)
    assert [state[0]["x"].tolist() for state in states] == [values] * parties


def columns_of(parties: int, rows: int, value: Callable[[int], int]) -> list[ring.Ring]:
    """Party i has i + 1 columns."""
    return [
        as_ring([[value(c) for c in range(i + 1)] for _ in range(rows)]).reshape(rows, i + 1) for i in range(parties)
    ]


@a_few
@given(st.data(), st.integers(2, 4), st.integers(0, 4))
def test_shares_of_all_columns_stand_side_by_side(tmp_path: Path, data: st.DataObject, parties: int, rows: int) -> None:
    own = columns_of(parties, rows, lambda _: data.draw(elements))
    states, _ = run_parties(SHARE, [{0: {"x": x}} for x in own], tmp_path)
    np.testing.assert_array_equal(joined(states, 0), np.concatenate(own, axis=1))


@a_few
@given(st.data(), st.integers(2, 4), st.integers(1, 4))
def test_the_product_of_two_columns_is_appended(tmp_path: Path, data: st.DataObject, parties: int, rows: int) -> None:
    own = columns_of(parties, rows, lambda _: data.draw(elements))
    everything = np.concatenate(own, axis=1)
    left, right = (data.draw(st.integers(0, everything.shape[1] - 1)) for _ in range(2))
    states, _ = run_parties(product_protocol(left, right), [{0: {"x": x}} for x in own], tmp_path)
    expected = [[*row, row[left] * row[right] % MODULUS] for row in everything.tolist()]
    assert joined(states, 0).tolist() == expected


# What the peers see: with the same secrets and fresh seeds every message is uniform, whatever the secrets are.
RUNS, ROWS = 10, 240
Seen = dict[tuple[str, str, str, str], list[Array]]


def transcripts(protocol: Protocol, shards: Sequence[Shards], folder: Path) -> Seen:
    """Every array of every message over many runs, by (stage, sender, recipient, name)."""
    seen: Seen = {}
    for _ in range(RUNS):
        _, board = run_parties(protocol, shards, folder)
        for key, payload in board.messages.items():
            for name, array in from_stream(payload).items():
                seen.setdefault((key.address.stage, key.sender, key.recipient, name), []).append(array)
    return seen


def constant_columns(parties: int, secret: int) -> list[Shards]:
    return [{0: {"x": np.full((ROWS, 1), secret, ring.DTYPE)}} for _ in range(parties)]


@pytest.mark.parametrize("secret", [0, MODULUS - 1])
@pytest.mark.parametrize("parties", [2, 3])
def test_all_that_is_sent_for_a_product_is_uniform(tmp_path: Path, parties: int, secret: int) -> None:
    seen = transcripts(product_protocol(0, 1), constant_columns(parties, secret), tmp_path)
    pairs = parties * (parties - 1)
    assert len(seen) == pairs * 3  # x of the first round, e and f of the second
    for which, arrays in seen.items():
        assert chi_square(np.concatenate(arrays)) < LIMIT, which


@pytest.mark.parametrize("parties", [2, 3])
def test_what_the_masked_factors_add_up_to_is_uniform_too(tmp_path: Path, parties: int) -> None:
    held = shared({"x": as_ring([5] * ROWS), "y": as_ring([7] * ROWS)}, parties)
    seen = transcripts(MULTIPLY, held, tmp_path)
    opened = {}
    for name in "ef":
        one_each = {sender: arrays for (_, sender, _, n), arrays in seen.items() if n == name}
        assert len(one_each) == parties
        opened[name] = ring.total([np.concatenate(arrays) for arrays in one_each.values()])
    for values in (opened["e"], opened["f"], opened["e"] - opened["f"]):
        assert chi_square(values) < LIMIT


def test_two_messages_of_one_party_are_uniform_together(tmp_path: Path) -> None:
    """One mask on two values would show in their difference."""
    seen = transcripts(product_protocol(0, 1), constant_columns(3, 9), tmp_path)
    by_sender = {s: [np.concatenate(a) for key, a in seen.items() if key[1] == s] for s in NAMES[:3]}
    for arrays in by_sender.values():
        distinct = list({array.tobytes(): array for array in arrays}.values())
        assert len(distinct) == 4  # two shares, e and f; the latter go to both peers
        for i, one in enumerate(distinct):
            for other in distinct[:i]:
                assert chi_square(one - other) < LIMIT


def test_only_revealing_shows_what_the_shares_are(tmp_path: Path) -> None:
    """Fixed shares are opened as they are: this is also the proof that the yardstick sees a value in the clear."""
    seen = transcripts(OPEN, [{0: {"x": np.full(ROWS, 3, ring.DTYPE)}} for _ in range(2)], tmp_path)
    for arrays in seen.values():
        assert chi_square(np.concatenate(arrays)) > LIMIT


def test_the_yardstick_sees_a_mask_that_leaves_one_byte_alone() -> None:
    rng = np.random.default_rng(1)
    masked = rng.integers(0, 2**56, RUNS * ROWS, np.uint64)
    assert chi_square(masked) > LIMIT
    assert chi_square(rng.integers(0, 2**64, RUNS * ROWS, np.uint64)) < LIMIT


def test_fresh_seeds_change_every_message(tmp_path: Path) -> None:
    boards = [run_parties(SHARE, constant_columns(2, 1), tmp_path)[1] for _ in range(2)]
    assert boards[0].messages.keys() == boards[1].messages.keys()
    assert all(not boards[0].messages[key].equals(boards[1].messages[key]) for key in boards[0].messages)


# Messages that are not what is due.
GOOD = as_ring([[1], [2]])
BAD: dict[str, Array | None] = {
    "missing": None,
    "other rows": as_ring([[1]]),
    "other dimensions": as_ring([1, 2]),
    "signed": GOOD.astype(np.int64),
    "small": GOOD.astype(np.uint8),
    "float": GOOD.astype(np.float64),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize(
    ("protocol", "name"), [(SHARE, "x"), (MULTIPLY, "e"), (MULTIPLY, "f"), (OPEN, "x"), (product_protocol(0, 0), "f")]
)
def test_a_message_of_another_shape_or_type_is_refused_with_the_name_of_its_sender(
    protocol: Protocol, name: str, bad: Array | None
) -> None:
    *_, round_ = protocol.rounds
    party = Party(0, NAMES[:3])
    good = {"x": GOOD, "e": GOOD, "f": GOOD}
    wrong = {key: array for key, array in {**good, name: bad}.items() if array is not None}
    state = dict.fromkeys(("x", "y", "left", "right"), GOOD)
    round_.receive(party, state, Inbox(party, {1: good, 2: good}), ShapeRecorder())
    with pytest.raises(RefusedError, match=r"^veilmeans\[6\]: bank sent "):
        round_.receive(party, state, Inbox(party, {1: good, 2: wrong}), ShapeRecorder())
