"""Shr and Rec against Python's integers, the content of their messages, and messages that are refused."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.parties import NAMES, Shards, message_arrays, reconstruct, run_parties, share_states
from support.primitive_checks import FEW, words
from support.uniformity import LIMIT, chi_square
from veilmeans.crypto import ring
from veilmeans.schemas.arrays import Array
from veilmeans.schemas.errors import RefusedError
from veilmeans.schemas.party import Party
from veilmeans.transforms.primitives.multiply import MULTIPLY
from veilmeans.transforms.primitives.share_and_open import OPEN, SHARE, commit_first
from veilmeans.transforms.rounds.protocol import Inbox, Protocol, Sent
from veilmeans.transforms.rounds.trace import ShapeRecorder

RUNS, ROWS = 10, 240


@FEW
@given(st.lists(words, max_size=8), st.integers(2, 4))
def test_opening_gives_the_value_to_all(tmp_path: Path, values: list[int], parties: int) -> None:
    states, _ = run_parties(OPEN, share_states({"x": np.array(values, ring.DTYPE)}, parties), tmp_path)
    assert [state[0]["x"].tolist() for state in states] == [values] * parties


def columns_of(parties: int, rows: int, value: Callable[[], int]) -> list[ring.Ring]:
    """Make a matrix for each party; party i has i + 1 columns."""
    return [
        np.array([[value() for _ in range(i + 1)] for _ in range(rows)], ring.DTYPE).reshape(rows, i + 1)
        for i in range(parties)
    ]


@FEW
@given(st.data(), st.integers(2, 4), st.integers(0, 4))
def test_shares_of_all_columns_stand_side_by_side(tmp_path: Path, data: st.DataObject, parties: int, rows: int) -> None:
    own = columns_of(parties, rows, lambda: data.draw(words))
    states, _ = run_parties(SHARE, [{0: {"x": x}} for x in own], tmp_path)
    np.testing.assert_array_equal(reconstruct(states, 0), np.concatenate(own, axis=1))


def constant_columns(parties: int, secret: int) -> list[Shards]:
    return [{0: {"x": np.full((ROWS, 1), secret, ring.DTYPE)}} for _ in range(parties)]


@pytest.mark.parametrize("secret", [0, 2**64 - 1])
@pytest.mark.parametrize("parties", [2, 3])
def test_shares_are_uniform_whatever_the_secret_is(tmp_path: Path, parties: int, secret: int) -> None:
    sent = message_arrays(SHARE, constant_columns(parties, secret), tmp_path, RUNS)
    assert len(sent) == parties * (parties - 1)
    for which, arrays in sent.items():
        assert chi_square(np.concatenate(arrays)) < LIMIT, which


def test_opening_sends_the_shares_as_they_are(tmp_path: Path) -> None:
    """Fixed shares are not uniform: this also proves that the statistic detects a value in the clear."""
    sent = message_arrays(OPEN, [{0: {"x": np.full(ROWS, 3, ring.DTYPE)}} for _ in range(2)], tmp_path, RUNS)
    for arrays in sent.values():
        assert chi_square(np.concatenate(arrays)) > LIMIT


def test_fresh_seeds_change_every_message(tmp_path: Path) -> None:
    first, second = (run_parties(SHARE, constant_columns(2, 1), tmp_path)[1].messages for _ in range(2))
    assert first.keys() == second.keys()
    assert not any(first[key].equals(second[key]) for key in first)


GOOD = np.array([[1], [2]], ring.DTYPE)
BAD: dict[str, Array | None] = {
    "missing": None,
    "other rows": GOOD[:1],
    "other dimensions": GOOD[:, 0],
    "signed": GOOD.astype(np.int64),
    "small": GOOD.astype(np.uint8),
    "float": GOOD.astype(np.float64),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize(("protocol", "name"), [(SHARE, "x"), (MULTIPLY, "e"), (MULTIPLY, "f"), (OPEN, "x")])
def test_a_message_of_wrong_shape_or_type_is_refused_and_its_sender_named(
    protocol: Protocol, name: str, bad: Array | None
) -> None:
    (round_,) = protocol.rounds
    party = Party(0, NAMES[:3])
    good = {"x": GOOD, "e": GOOD, "f": GOOD}
    wrong = {key: array for key, array in {**good, name: bad}.items() if array is not None}
    state = {"x": GOOD, "y": GOOD}
    round_.receive(party, state, Inbox(party, {1: good, 2: good}), ShapeRecorder())
    with pytest.raises(RefusedError, match="bank"):
        round_.receive(party, state, Inbox(party, {1: good, 2: wrong}), ShapeRecorder())


# openings that are committed to
COMMITTED = Protocol("opening", commit_first(OPEN.rounds[0]))


@FEW
@given(st.lists(words, max_size=8), st.integers(2, 4))
def test_a_committed_opening_gives_the_value_to_all(tmp_path: Path, values: list[int], parties: int) -> None:
    states, _ = run_parties(COMMITTED, share_states({"x": np.array(values, ring.DTYPE)}, parties), tmp_path)
    assert [state[0]["x"].tolist() for state in states] == [values] * parties
    assert all(set(state[0]) == {"x"} for state in states)


def test_a_commitment_hides_the_share(tmp_path: Path) -> None:
    """Whoever knows that a share is one of two could hash both: without the nonce it would find which."""
    sent = message_arrays(COMMITTED, [{0: {"x": np.full(ROWS, 3, ring.DTYPE)}} for _ in range(2)], tmp_path, RUNS)
    commitments = [arrays for which, arrays in sent.items() if "commit.to" in str(which)]
    assert len(commitments) == 2
    for arrays in commitments:
        assert len({array.tobytes() for array in arrays}) == RUNS


class _Nonces:
    def uniform(self, label: str, shape: tuple[int, ...]) -> ring.Ring:
        return np.full(shape, 1 + int(label[-1]), ring.DTYPE)


def test_a_party_cannot_open_another_share_than_it_has_committed_to() -> None:
    """The second party waits for the first one's share and then wants the sum to be 5."""
    first, second = (Party(i, NAMES[:2]) for i in range(2))
    commit, opening = COMMITTED.rounds
    states = [{"x": np.array([value], ring.DTYPE)} for value in (1, 2)]
    sent = [commit.send(party, state, _Nonces()) for party, state in zip((first, second), states, strict=True)]
    state = commit.receive(first, sent[0].state, Inbox(first, {1: sent[1].message}), _Nonces())
    honest = opening.send(second, sent[1].state, _Nonces())
    assert opening.receive(first, state, Inbox(first, {1: honest.message}), _Nonces())["x"].tolist() == [3]
    chosen = Sent(honest.state, {**honest.message, "x": np.array([4], ring.DTYPE)})
    with pytest.raises(RefusedError, match=f"{NAMES[1]} opened another share than the one that it had committed to"):
        opening.receive(first, state, Inbox(first, {1: chosen.message}), _Nonces())
