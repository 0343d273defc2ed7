"""Rounds and routes: who sends to whom, what a retry sends, what may be pickled."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from support.parties import TRIPLES, Board, deal_stores, make_configs, run_parties
from veilmeans.crypto import ring
from veilmeans.io.storage.scratch import Scratch
from veilmeans.io.storage.triple_store import Manifest, StoreRun, TripleStore
from veilmeans.schemas.arrays import Array, Arrays, from_stream
from veilmeans.schemas.errors import RefusedError
from veilmeans.schemas.party import Party
from veilmeans.transforms.primitives.multiply import MULTIPLY, multiply
from veilmeans.transforms.primitives.share_and_open import OPEN, SHARE
from veilmeans.transforms.rounds.interfaces import Randomness
from veilmeans.transforms.rounds.party_context import OpenPartyContext, PartyContext, send
from veilmeans.transforms.rounds.protocol import Inbox, Protocol, Round, Sent, local, require, together
from veilmeans.transforms.rounds.stage_metrics import Tally

NAMES = ("payco", "shop", "bank")


def one(*values: int) -> ring.Ring:
    return np.array(values, ring.DTYPE)


def keep_inbox(party: Party, state: Arrays, inbox: Inbox, randomness: Randomness) -> Arrays:
    """What came from whom, under names such as `from0`."""
    del party, state, randomness
    return {f"from{peer}": inbox.from_peer(peer, "x", one(0)) for peer in sorted(inbox.messages)}


def say_who(party: Party, state: Arrays, randomness: Randomness) -> Sent:
    del randomness
    return Sent(state, {"x": one(party.index)})


def say_whom(party: Party, state: Arrays, randomness: Randomness) -> Sent:
    del randomness
    return Sent(state, to={peer: {"x": one(10 * party.index + peer)} for peer in party.others})


def to_shop(sender: int, parties: int) -> tuple[int, ...]:
    del parties
    return (1,) if sender == 0 else ()


def to_those_before(sender: int, parties: int) -> tuple[int, ...]:
    del parties
    return tuple(range(sender))


@pytest.mark.parametrize(
    ("round_", "heard"),
    [
        (Round("r", say_who, keep_inbox, "x", to_shop), [{}, {"from0": 0}, {}]),
        (Round("r", say_who, keep_inbox, "x", to_those_before), [{"from1": 1, "from2": 2}, {"from2": 2}, {}]),
        (Round("r", say_whom, keep_inbox, "x", to_those_before), [{"from1": 10, "from2": 20}, {"from2": 21}, {}]),
        (
            Round("r", say_whom, keep_inbox, "x"),
            [{"from1": 10, "from2": 20}, {"from0": 1, "from2": 21}, {"from0": 2, "from1": 12}],
        ),
    ],
)
def test_each_party_hears_from_exactly_those_who_send_to_it(
    tmp_path: Path, round_: Round, heard: list[dict[str, int]]
) -> None:
    states, board = run_parties(Protocol("p", (round_,)), [{0: {"x": one(0)}}] * 3, tmp_path)
    assert [{name: int(array[0]) for name, array in state[0].items()} for state in states] == heard
    assert len(board.messages) == sum(map(len, heard))
    for key, payload in board.messages.items():
        assert int(from_stream(payload)["x"][0]) == heard[NAMES.index(key.recipient)][f"from{NAMES.index(key.sender)}"]


def claimed(folder: Path, number: int = 0) -> StoreRun:
    """A part of the store of a party that gets no corrections."""
    manifest = Manifest("store", runs=2, iterations=1, rows=10, plan="")
    return TripleStore.create(folder, manifest, bytes(32)).claim(number, f"run{number}", "data")


def context(seed: bytes, store: StoreRun | None = None) -> OpenPartyContext:
    return OpenPartyContext(Party(1, NAMES), "run", 0, Board(), seed, store, Scratch("value"), 1.0)


@pytest.mark.parametrize("protocol", [SHARE, MULTIPLY, OPEN], ids=lambda p: p.name)
def test_a_retry_sends_the_same_bytes_and_goes_on_with_the_same_state(tmp_path: Path, protocol: Protocol) -> None:
    x = np.arange(20, dtype=ring.DTYPE).reshape(10, 2)
    store = claimed(tmp_path)
    (stage,) = protocol.stages()
    seed = os.urandom(32)
    (state, first), (again, second) = (
        send(context(seed, store), stage, 7, {"x": x, "y": x}, Tally()) for _ in range(2)
    )
    assert [(m.key, m.payload.to_pybytes()) for m in first] == [(m.key, m.payload.to_pybytes()) for m in second]
    assert {name: array.tobytes() for name, array in state.items()} == {n: a.tobytes() for n, a in again.items()}


@pytest.mark.parametrize("protocol", [SHARE, MULTIPLY], ids=lambda p: p.name)
def test_two_shards_and_two_stages_never_share_a_mask(tmp_path: Path, protocol: Protocol) -> None:
    zeros = np.zeros((10, 2), ring.DTYPE)
    here = context(bytes(32), claimed(tmp_path))
    sent: list[Array] = []
    for stage in (protocol * 2).stages():
        for shard in range(2):
            _, messages = send(here, stage, shard, {"x": zeros, "y": zeros}, Tally())
            distinct = {m.payload.to_pybytes(): m for m in messages}
            sent += [array for m in distinct.values() for array in from_stream(m.payload).values()]
    values = np.concatenate([array.reshape(-1) for array in sent])
    assert len(np.unique(values)) == len(values)


def test_two_runs_of_a_store_never_share_a_mask_and_one_that_goes_on_uses_its_own_again(tmp_path: Path) -> None:
    zeros = np.zeros((10, 2), ring.DTYPE)
    (stage,) = MULTIPLY.stages()
    contexts = [context(bytes(32), claimed(tmp_path, number)) for number in (0, 1, 0)]
    sent = [send(each, stage, 0, {"x": zeros, "y": zeros}, Tally())[1][0].payload for each in contexts]
    values = np.concatenate([array.reshape(-1) for payload in sent[:2] for array in from_stream(payload).values()])
    assert len(np.unique(values)) == len(values) == 2 * 2 * 20
    assert sent[0].equals(sent[2])


def test_a_round_that_asks_for_one_mask_twice_is_refused() -> None:
    def careless(party: Party, state: Arrays, randomness: Randomness) -> Sent:
        del party
        return Sent(state, {name: state[name] - randomness.uniform("mask", (1,)) for name in "xy"})

    (stage,) = Protocol("p", (Round("r", careless, keep_inbox, "x"),)).stages()
    with pytest.raises(ValueError, match=r"'mask' of run/0/p\.00\.r/3 is asked for twice"):
        send(context(bytes(32)), stage, 3, {"x": one(1), "y": one(2)}, Tally())


def test_a_tally_counts_messages_and_bytes() -> None:
    tally = Tally()
    (stage,) = SHARE.stages()
    _, messages = send(context(bytes(32)), stage, 0, {"x": np.zeros((10, 2), ring.DTYPE)}, tally)
    assert tally.messages == 2
    assert tally.bytes_sent == sum(message.payload.size for message in messages) > 2 * 160


@pytest.mark.parametrize(
    ("array", "found"),
    [(None, "nothing"), (one(1, 2), "uint64 (2,)"), (one(1).reshape(1, 1), "uint64 (1, 1)"),
     (np.array([1]), "int64 (1,)"), (np.array([1.0]), "float64 (1,)")],
)  # fmt: skip
def test_an_inbox_refuses_what_has_not_the_due_shape_and_type(array: Array | None, found: str) -> None:
    inbox = Inbox(Party(0, NAMES), {1: {} if array is None else {"x": array}, 2: {"x": one(1)}})
    with pytest.raises(RefusedError) as refused:
        inbox.opened("x", one(5))
    assert refused.value.sentence == f"shop sent {found} as 'x' where uint64 (1,) was due"


def test_what_is_opened_is_the_sum_of_all_parts() -> None:
    inbox = Inbox(Party(0, NAMES), {1: {"x": one(2**63)}, 2: {"x": one(2**63 + 5)}})
    mine = one(1)
    assert inbox.opened("x", mine).tolist() == [6]
    assert mine.tolist() == [1]


def test_protocols_concatenate_and_their_stages_have_names_of_their_own() -> None:
    protocol = (SHARE + MULTIPLY * 2 + OPEN).named("p")
    assert len(protocol) == 4
    names = [stage.name for stage in protocol.stages()]
    assert names == ["p.00.share", "p.01.multiply", "p.02.multiply", "p.03.reveal"]


def test_a_state_of_another_type_is_no_share() -> None:
    with pytest.raises(TypeError, match="'x' is int64, not uint64"):
        require({"x": np.array([1])}, "x")


def test_a_seat_may_be_pickled_and_holds_no_secret_but_an_open_one_may_not(tmp_path: Path) -> None:
    configs = make_configs(tmp_path, kind="files", triples=TRIPLES)
    nothing: Arrays = {"x": one(0), "y": one(0)}
    dealt = deal_stores([c.store_folder for c in configs.values()], MULTIPLY, [{0: nothing}] * 2)
    config, here = configs["payco"], PartyContext(configs["payco"], "binding", store_number=0)
    pickled = pickle.dumps(here)
    assert pickle.loads(pickled) == here  # noqa: S301
    opened = here.open()
    assert opened.triples == dealt[0]
    assert dealt[0].seed not in pickled
    assert config.seed.read_bytes() not in pickled
    assert config.key.read_bytes() not in pickled
    assert opened.seed not in pickled
    with pytest.raises(TypeError, match="holds secrets"):
        pickle.dumps(opened)


def test_masks_depend_on_the_data_they_cover_and_on_the_run(tmp_path: Path) -> None:
    config = make_configs(tmp_path, kind="files")["payco"]
    other = config.model_copy(update={"run": "other"})
    seeds = [
        s.open().seed
        for s in (
            PartyContext(config, "a"),
            PartyContext(config, "b"),
            PartyContext(other, "a"),
            PartyContext(config, "a"),
        )
    ]
    assert len(set(seeds)) == 3
    assert seeds[0] == seeds[3]


# Rounds made of others.
def double(party: Party, state: Arrays) -> Arrays:
    del party
    return {**state, "x": state["x"] * ring.DTYPE(2)}


def values(folder: Path, protocol: Protocol, **shared: int) -> dict[str, int]:
    """What party 0's shares and 1's zeros add up to after a protocol of two parties."""
    mine, other = ({name: one(value * (1 - i)) for name, value in shared.items()} for i in range(2))
    states, _ = run_parties(protocol, [{0: mine}, {0: other}], folder)
    return {name: int(ring.total([state[0][name] for state in states])[0]) for name in states[0][0]}


def test_local_work_before_and_after_a_protocol(tmp_path: Path) -> None:
    assert values(tmp_path, MULTIPLY.after(double), x=5, y=7) == {"x": 70, "y": 7}
    assert values(tmp_path, MULTIPLY.then(double), x=5, y=7) == {"x": 70, "y": 7}
    assert values(tmp_path, MULTIPLY.after(double).then(double), x=5, y=7) == {"x": 140, "y": 7}
    assert [s.name for s in MULTIPLY.after(double).then(double).stages()] == ["multiply.00.multiply"]


def test_a_local_round_sends_nothing(tmp_path: Path) -> None:
    protocol = Protocol("p", (local("double", double),))
    states, board = run_parties(protocol, [{0: {"x": one(3)}}, {0: {"x": one(4)}}], tmp_path)
    assert [int(state[0]["x"][0]) for state in states] == [6, 8]
    assert not board.messages


def test_rounds_together_share_a_message_and_no_randomness(tmp_path: Path) -> None:
    rounds = [multiply("a", "b", "c").rounds[0], multiply("a", "b", "d").rounds[0]]
    protocol = Protocol("p", (together("both", *rounds),))
    assert values(tmp_path, protocol, a=5, b=7) == {"a": 5, "b": 7, "c": 35, "d": 35}
    held: Arrays = {"a": one(5), "b": one(7)}
    _, board = run_parties(protocol, [{0: held}] * 2, tmp_path)
    assert len(board.messages) == 2
    for payload in board.messages.values():
        said = from_stream(payload)
        assert set(said) == {"0/e", "0/f", "1/e", "1/f"}
        assert len({array.tobytes() for array in said.values()}) == 4
