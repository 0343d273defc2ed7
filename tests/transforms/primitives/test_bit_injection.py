"""Bit injection and B2A against Python's integers; rounds that run together; local work around them."""

from functools import reduce
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.parties import run_parties, split
from support.primitive_checks import EDGES, PARTIES, Outcome, parties, words
from veilmeans.crypto import bits
from veilmeans.crypto.correlations import DaBit
from veilmeans.schemas.arrays import Array, Arrays, from_stream
from veilmeans.schemas.party import Party
from veilmeans.transforms.primitives.bit_injection import b2a, inject
from veilmeans.transforms.rounds.protocol import Protocol, Round, local, require, together
from veilmeans.transforms.rounds.trace import trace

FEW = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
SIZES = [1, 7, 8, 9, 64]
MODULUS = 2**64


def bit_shares(values: list[int], count: int, seed: int = 99) -> list[Array]:
    """Packed bits shared by XOR; what pads them is shared, too, and not zero."""
    packed = bits.pack(np.array(values, np.uint8))
    rng = np.random.default_rng(seed)
    shares = [rng.integers(0, 256, packed.size, np.uint8) for _ in range(count - 1)]
    return [*shares, reduce(np.bitwise_xor, shares, packed)]


def begin(count: int, bit: dict[str, list[int]], **values: list[int]) -> list[dict[int, Arrays]]:
    shares: dict[str, list[Array]] = {name: bit_shares(each, count, i) for i, (name, each) in enumerate(bit.items())}
    shares |= {name: split(np.array(each, np.uint64), count, i + 9) for i, (name, each) in enumerate(values.items())}
    return [{0: {name: parts[i] for name, parts in shares.items()}} for i in range(count)]


def play(rounds: tuple[Round, ...], count: int, folder: Path, bit: list[int], **values: list[int]) -> Outcome:
    states, _ = run_parties(Protocol("p", rounds), begin(count, {"b": bit}, **values), folder)
    return Outcome(states)


@st.composite
def pairs(draw: st.DrawFn) -> list[tuple[int, int]]:
    """As many bits and values as one of the sizes."""
    size = draw(st.sampled_from(SIZES))
    return draw(st.lists(st.tuples(st.integers(0, 1), words), min_size=size, max_size=size))


@FEW
@given(chosen=pairs(), count=parties)
def test_an_injection_is_the_product_with_the_bit(tmp_path: Path, chosen: list[tuple[int, int]], count: int) -> None:
    bit, x = ([pair[i] for pair in chosen] for i in (0, 1))
    outcome = play((inject("b", "x", "z"),), count, tmp_path, bit, x=x)
    assert outcome.names() == {"b", "x", "z"}
    assert outcome.total("z").tolist() == [b * v for b, v in chosen]
    assert outcome.total("x").tolist() == x


@pytest.mark.parametrize("count", PARTIES)
@pytest.mark.parametrize("size", SIZES)
def test_every_size_with_both_bits(tmp_path: Path, size: int, count: int) -> None:
    values = [EDGES[i % len(EDGES)] for i in range(size)]
    for flip in (0, 1):
        bit = [(i + flip) % 2 for i in range(size)]
        both = (inject("b", "x", "z"), b2a("b", "x", "a"))
        outcome = play(both, count, tmp_path, bit, x=values)
        assert outcome.total("z").tolist() == [b * v for b, v in zip(bit, values, strict=True)]
        assert outcome.total("a").tolist() == bit


@pytest.mark.parametrize("count", PARTIES)
def test_an_injection_may_replace_its_value_and_keeps_its_shape(tmp_path: Path, count: int) -> None:
    x = np.arange(1, 16, dtype=np.uint64).reshape(3, 5)
    bit = [1, 0, 0, 1, 1] * 3
    states = begin(count, {"b": bit})
    for state, share in zip(states, split(x, count), strict=True):
        state[0] = {**state[0], "x": share}
    protocol = Protocol("p", (b2a("b", "x", "a"), inject("b", "x", "x")))
    outcome = Outcome(run_parties(protocol, states, tmp_path)[0])
    np.testing.assert_array_equal(outcome.total("x"), x * np.array(bit, np.uint64).reshape(3, 5))
    np.testing.assert_array_equal(outcome.total("a"), np.reshape(bit, (3, 5)))


@FEW
@given(chosen=pairs(), count=parties)
def test_b2a_shares_the_bit_by_sum(tmp_path: Path, chosen: list[tuple[int, int]], count: int) -> None:
    bit = [b for b, _ in chosen]
    outcome = play((b2a("b", "x", "a"),), count, tmp_path, bit, x=[v for _, v in chosen])
    assert outcome.names() == {"b", "x", "a"}
    assert outcome.total("a").tolist() == bit


@pytest.mark.parametrize("count", PARTIES)
@pytest.mark.parametrize("size", [8, 13, 64])
def test_b2a_of_all_packed_bits_takes_in_what_pads_them(tmp_path: Path, size: int, count: int) -> None:
    """With no array to be like, the result is flat and as long as the bytes have bits."""
    bit = [int(i % 3 == 1) for i in range(size)]
    outcome = play((b2a("b", None, "a"),), count, tmp_path, bit)
    assert outcome.names() == {"b", "a"}
    packed = outcome.xor("b")
    assert outcome.total("a").tolist() == bits.unpack(packed, 8 * packed.size).tolist()
    np.testing.assert_array_equal(bits.unpack(packed, size), bit)
    (stage,) = trace(Protocol("p", (b2a("b", None, "a"),)), [{"b": (packed.shape, "uint8")}] * count)
    assert [need.kind for need in stage.needs] == [DaBit(count, 8 * packed.size)]


# Local work before and after: MUX.
def difference(party: Party, state: Arrays) -> Arrays:
    del party
    return {**state, "d": require(state, "x") - require(state, "y")}


def plus_right(party: Party, state: Arrays) -> Arrays:
    del party
    return {"z": require(state, "z") + require(state, "y")}


def add_public(party: Party, state: Arrays) -> Arrays:
    return {**state, "x": require(state, "x") + np.uint64(5 if party.first else 0)}


MUX = Protocol("mux", (inject("b", "d", "z"),)).after(difference).then(plus_right)


@FEW
@given(data=st.data(), size=st.sampled_from(SIZES), count=parties)
def test_a_mux_is_an_injection_of_the_difference(tmp_path: Path, data: st.DataObject, size: int, count: int) -> None:
    bit, x, y = (data.draw(st.lists(each, min_size=size, max_size=size)) for each in (st.integers(0, 1), words, words))
    outcome = Outcome(run_parties(MUX, begin(count, {"b": bit}, x=x, y=y), tmp_path)[0])
    assert outcome.names() == {"z"}
    assert outcome.total("z").tolist() == [v if b else w for b, v, w in zip(bit, x, y, strict=True)]


def test_work_around_a_protocol_is_no_round_and_changes_no_other_round(tmp_path: Path) -> None:
    plain = Protocol("p", (inject("b", "x", "x"), inject("b", "x", "x")))
    around = plain.after(add_public).then(add_public)
    assert [stage.name for stage in around.stages()] == [stage.name for stage in plain.stages()]
    assert plain.rounds[0].send is not around.rounds[0].send
    assert around.rounds[0].receive is plain.rounds[0].receive
    assert around.rounds[1].send is plain.rounds[1].send
    states = begin(3, {"b": [0, 1, 1]}, x=[7, 8, MODULUS - 5])
    assert Outcome(run_parties(around, states, tmp_path)[0]).total("x").tolist() == [5, 18, 5]
    assert Outcome(run_parties(plain, states, tmp_path)[0]).total("x").tolist() == [0, 8, MODULUS - 5]


def test_work_before_is_done_once_and_in_the_order_it_was_asked_for(tmp_path: Path) -> None:
    def double(party: Party, state: Arrays) -> Arrays:
        del party
        return {**state, "x": require(state, "x") * np.uint64(2)}

    states = begin(2, {"b": [1]}, x=[10])
    one = Protocol("p", (inject("b", "x", "x"),))
    for protocol, expected in (
        (one.after(add_public).after(double), 25),  # the later `after` is the earlier work
        (one.after(double).after(add_public), 30),
        (one.then(add_public).then(double), 30),
        (one.then(double).then(add_public), 25),
    ):
        assert Outcome(run_parties(protocol, states, tmp_path)[0]).total("x").tolist() == [expected]


def test_local_work_sends_nothing(tmp_path: Path) -> None:
    protocol = Protocol("p", (local("add", add_public),))
    states, board = run_parties(protocol, begin(3, {}, x=[1, 2]), tmp_path)
    assert Outcome(states).total("x").tolist() == [6, 7]
    assert not board.messages
    (stage,) = trace(protocol, [{"x": ((2,), "uint64")}] * 3)
    assert (stage.sent, stage.needs) == ((0, 0, 0), ())


# Rounds that run together.
BOTH = Protocol("p", (together("both", inject("b", "x", "s"), inject("c", "y", "t")),))


@FEW
@given(left=pairs(), right=pairs(), count=parties)
def test_two_injections_in_one_round(
    tmp_path: Path, left: list[tuple[int, int]], right: list[tuple[int, int]], count: int
) -> None:
    chosen = {"b": [b for b, _ in left], "c": [b for b, _ in right]}
    states = begin(count, chosen, x=[v for _, v in left], y=[v for _, v in right])
    after, board = run_parties(BOTH, states, tmp_path)
    assert Outcome(after).total("s").tolist() == [b * v for b, v in left]
    assert Outcome(after).total("t").tolist() == [b * v for b, v in right]
    assert len(board.messages) == count * (count - 1)
    for payload in board.messages.values():
        assert set(from_stream(payload)) == {"0/o", "0/e", "1/o", "1/e"}


def test_rounds_that_run_together_have_masks_of_their_own(tmp_path: Path) -> None:
    """The same bits and values twice: equal masks would make equal messages."""
    protocol = Protocol("p", (together("both", inject("b", "x", "s"), inject("b", "x", "t")),))
    _, board = run_parties(protocol, begin(3, {"b": [0, 1] * 40}, x=[3] * 80), tmp_path)
    for payload in board.messages.values():
        arrays = from_stream(payload)
        assert not np.array_equal(arrays["0/o"], arrays["1/o"])
        assert not np.isin(arrays["0/e"], arrays["1/e"]).any()
    (stage,) = trace(protocol, [{"b": ((10,), "uint8"), "x": ((80,), "uint64")}] * 3)
    assert [(need.scope, need.kind.name) for need in stage.needs] == [("0/", "inject"), ("1/", "inject")]


def test_rounds_may_run_together_within_rounds_that_do(tmp_path: Path) -> None:
    inner = together("inner", inject("b", "x", "s"), b2a("b", "x", "a"))
    protocol = Protocol("p", (together("outer", inner, inject("c", "y", "t")),))
    states = begin(2, {"b": [1, 0, 1], "c": [0, 1]}, x=[5, 6, 7], y=[8, 9])
    after, board = run_parties(protocol, states, tmp_path)
    outcome = Outcome(after)
    assert [outcome.total(name).tolist() for name in ("s", "a", "t")] == [[5, 0, 7], [1, 0, 1], [0, 9]]
    for payload in board.messages.values():
        assert set(from_stream(payload)) == {"0/0/o", "0/0/e", "0/1/o", "1/o", "1/e"}
