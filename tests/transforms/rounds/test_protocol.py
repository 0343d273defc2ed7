"""Rounds, routes and protocols: who sends to whom, what an inbox refuses, and how rounds are put together."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from support.parties import NAMES, run_parties, shapes_of
from veilmeans.crypto import ring
from veilmeans.schemas.arrays import Array, Arrays, from_stream
from veilmeans.schemas.errors import RefusedError
from veilmeans.schemas.party import Party
from veilmeans.transforms.primitives.multiply import MULTIPLY, multiply
from veilmeans.transforms.primitives.share_and_open import OPEN, SHARE
from veilmeans.transforms.rounds.interfaces import Randomness
from veilmeans.transforms.rounds.protocol import Inbox, Protocol, Round, Sent, local_round, merge_rounds, require
from veilmeans.transforms.rounds.trace import trace


def array_of(*values: int) -> ring.Ring:
    return np.array(values, ring.DTYPE)


def keep_inbox(party: Party, state: Arrays, inbox: Inbox, randomness: Randomness) -> Arrays:
    """Keep each peer's array under a name such as `from0`."""
    del party, state, randomness
    return {f"from{peer}": inbox.from_peer(peer, "x", array_of(0)) for peer in sorted(inbox.messages)}


def send_own_index(party: Party, state: Arrays, randomness: Randomness) -> Sent:
    del randomness
    return Sent(state, {"x": array_of(party.index)})


def send_both_indices(party: Party, state: Arrays, randomness: Randomness) -> Sent:
    del randomness
    return Sent(state, to={peer: {"x": array_of(10 * party.index + peer)} for peer in party.others})


def to_shop(sender: int, parties: int) -> tuple[int, ...]:
    del parties
    return (1,) if sender == 0 else ()


def to_earlier_parties(sender: int, parties: int) -> tuple[int, ...]:
    del parties
    return tuple(range(sender))


@pytest.mark.parametrize(
    ("round_", "received"),
    [
        (Round("r", send_own_index, keep_inbox, "x", to_shop), [{}, {"from0": 0}, {}]),
        (
            Round("r", send_own_index, keep_inbox, "x", to_earlier_parties),
            [{"from1": 1, "from2": 2}, {"from2": 2}, {}],
        ),
        (
            Round("r", send_both_indices, keep_inbox, "x", to_earlier_parties, broadcast=False),
            [{"from1": 10, "from2": 20}, {"from2": 21}, {}],
        ),
        (
            Round("r", send_both_indices, keep_inbox, "x", broadcast=False),
            [{"from1": 10, "from2": 20}, {"from0": 1, "from2": 21}, {"from0": 2, "from1": 12}],
        ),
    ],
)
def test_each_party_receives_from_exactly_those_who_send_to_it(
    tmp_path: Path, round_: Round, received: list[dict[str, int]]
) -> None:
    states, exchange = run_parties(Protocol("p", (round_,)), [{0: {"x": array_of(0)}}] * 3, tmp_path)
    assert [{name: int(array[0]) for name, array in state[0].items()} for state in states] == received
    assert len(exchange.messages) == sum(map(len, received))
    for key, payload in exchange.messages.items():
        sender, recipient = NAMES.index(key.sender), NAMES.index(key.recipient)
        assert int(from_stream(payload)["x"][0]) == received[recipient][f"from{sender}"]


@pytest.mark.parametrize(
    ("array", "described"),
    [(None, "nothing"), (array_of(1, 2), "uint64 (2,)"), (array_of(1).reshape(1, 1), "uint64 (1, 1)"),
     (np.array([1]), "int64 (1,)"), (np.array([1.0]), "float64 (1,)")],
)  # fmt: skip
def test_an_inbox_refuses_arrays_of_wrong_shape_or_type(array: Array | None, described: str) -> None:
    inbox = Inbox(Party(0, NAMES[:3]), {1: {} if array is None else {"x": array}, 2: {"x": array_of(1)}})
    with pytest.raises(RefusedError) as refused:
        inbox.open_sum("x", array_of(5))
    assert refused.value.sentence.startswith(f"shop sent {described} as 'x'")
    assert "uint64 (1,)" in refused.value.sentence


def test_an_opened_value_is_the_sum_of_all_parties_arrays() -> None:
    inbox = Inbox(Party(0, NAMES[:3]), {1: {"x": array_of(2**63)}, 2: {"x": array_of(2**63 + 5)}})
    mine = array_of(1)
    assert inbox.open_sum("x", mine).tolist() == [6]
    assert mine.tolist() == [1]


def test_stages_of_concatenated_protocols_have_unique_names() -> None:
    protocol = (SHARE + MULTIPLY * 2 + OPEN).named("p")
    assert len(protocol) == 4
    names = [stage.name for stage in protocol.stages()]
    assert names == ["p.00.share", "p.01.multiply", "p.02.multiply", "p.03.reveal"]


def test_a_state_of_another_type_is_refused_as_a_share() -> None:
    with pytest.raises(TypeError, match="'x' is int64"):
        require({"x": np.array([1])}, "x")


# rounds made of others
def double(party: Party, state: Arrays) -> Arrays:
    del party
    return {**state, "x": state["x"] * ring.DTYPE(2)}


def add_five(party: Party, state: Arrays) -> Arrays:
    return {**state, "x": state["x"] + ring.DTYPE(5 if party.first else 0)}


def results(folder: Path, protocol: Protocol, **values: int) -> dict[str, int]:
    """Run a protocol of two parties on shares of `values`, of which party 1's are zero; reconstruct all results."""
    mine, other = ({name: array_of(value * (1 - i)) for name, value in values.items()} for i in range(2))
    states, _ = run_parties(protocol, [{0: mine}, {0: other}], folder)
    return {name: int(ring.total([state[0][name] for state in states])[0]) for name in states[0][0]}


def test_local_work_before_and_after_a_protocol_is_done_once_and_in_order(tmp_path: Path) -> None:
    for protocol, product in (
        (MULTIPLY.after(double), 70),
        (MULTIPLY.then(double), 70),
        (MULTIPLY.after(double).then(double), 140),
        (MULTIPLY.after(add_five).after(double), 105),  # the later `after` is the earlier work
        (MULTIPLY.after(double).after(add_five), 140),
        (MULTIPLY.then(add_five).then(double), 80),
        (MULTIPLY.then(double).then(add_five), 75),
    ):
        assert results(tmp_path, protocol, x=5, y=7) == {"x": product, "y": 7}


def test_local_work_adds_no_round_and_changes_no_other_round() -> None:
    plain = MULTIPLY * 2
    around = plain.after(double).then(double)
    assert [stage.name for stage in around.stages()] == [stage.name for stage in plain.stages()]
    assert around.rounds[0].receive is plain.rounds[0].receive
    assert around.rounds[1].send is plain.rounds[1].send


def test_a_local_round_sends_nothing(tmp_path: Path) -> None:
    protocol = Protocol("p", (local_round("double", double),))
    states, exchange = run_parties(protocol, [{0: {"x": array_of(3)}}, {0: {"x": array_of(4)}}], tmp_path)
    assert [int(state[0]["x"][0]) for state in states] == [6, 8]
    assert not exchange.messages
    (stage,) = trace(protocol, [shapes_of({"x": array_of(3)})] * 2)
    assert (stage.sent, stage.needs) == ((0, 0), ())


def test_merged_rounds_share_a_message_and_no_randomness(tmp_path: Path) -> None:
    """Both products are of the same values: equal masks would make equal messages."""
    rounds = [multiply("a", "b", target).rounds[0] for target in "cd"]
    protocol = Protocol("p", (merge_rounds("both", *rounds),))
    assert results(tmp_path, protocol, a=5, b=7) == {"a": 5, "b": 7, "c": 35, "d": 35}
    state: Arrays = {"a": array_of(5), "b": array_of(7)}
    _, exchange = run_parties(protocol, [{0: state}] * 2, tmp_path)
    assert len(exchange.messages) == 2
    for payload in exchange.messages.values():
        arrays = from_stream(payload)
        assert set(arrays) == {"0/e", "0/f", "1/e", "1/f"}
        assert len({array.tobytes() for array in arrays.values()}) == 4
    (stage,) = trace(protocol, [shapes_of(state)] * 2)
    assert [(need.scope, need.kind.name) for need in stage.needs] == [("0/", "mul"), ("1/", "mul")]


def test_merged_rounds_can_be_merged_again(tmp_path: Path) -> None:
    first, second, third = (multiply("a", "b", target).rounds[0] for target in "cde")
    protocol = Protocol("p", (merge_rounds("outer", merge_rounds("inner", first, second), third),))
    assert results(tmp_path, protocol, a=5, b=7) == {"a": 5, "b": 7, "c": 35, "d": 35, "e": 35}
    _, exchange = run_parties(protocol, [{0: {"a": array_of(5), "b": array_of(7)}}] * 2, tmp_path)
    for payload in exchange.messages.values():
        assert set(from_stream(payload)) == {f"{scope}/{name}" for scope in ("0/0", "0/1", "1") for name in "ef"}


@pytest.mark.processes
def test_protocols_import_neither_io_nor_beam() -> None:
    program = (
        "import sys, veilmeans.transforms.primitives.argmin_tree, veilmeans.transforms.primitives.divide\n"
        "import veilmeans.transforms.products.cross_product, veilmeans.transforms.kmeans.centroid_update\n"
        "assert not [name for name in sys.modules if name.startswith(('veilmeans.io', 'apache_beam'))]\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
