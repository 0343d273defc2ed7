"""Every kind by oblivious transfer between two parties, against plain integers; retries, nonces, transcripts."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.ot_dealing import check_kind, is_correlated
from support.ot_stores import (
    PARTIES,
    fresh_states,
    make_place,
    place_states,
    run_both,
    small_setup,
)
from support.parties import NAMES, InMemoryExchange
from veilmeans.crypto.correlations import BitProducts, DaBit, Inject, Kind, Mul, ProductGroups, Trunc
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Arrays, from_stream, payload_size
from veilmeans.schemas.errors import ConfigError, RefusedError
from veilmeans.schemas.message import MessageKey
from veilmeans.schemas.party import Party
from veilmeans.transforms.offline.ot_places import OtPlace, stored_parts
from veilmeans.transforms.offline.ot_setup import Provider
from veilmeans.transforms.offline.traced_job import Needs
from veilmeans.transforms.rounds.interfaces import CorrelationNeed
from veilmeans.transforms.rounds.protocol import Inbox

PROVIDERS: tuple[Provider, ...] = ("ot", "iknp")
AND = ProductGroups(2, 3, ((((0,), (1,)),), (((0,), (2,)),), (((0,), (1,), (2,)),)))
PAIR = ProductGroups(1, 4, ((((0,), (2,)),), (((0,), (2,), (1, 3)), ((1,), (3,)))))


def kinds(count: int) -> list[Kind]:
    return [
        BitProducts(2, count, (AND,)),
        BitProducts(2, count, (PAIR,), known=True),
        DaBit(2, count),
        Inject(2, count),
        Inject(2, 3 * count, np.uint32, times=3),
        Mul(2, (count, 2)),
        Trunc(2, count, 20),
    ]


def needs_of(*wanted: Kind) -> Needs:
    return {f"stage.{i:02d}": (CorrelationNeed("0/", kind),) for i, kind in enumerate(wanted)}


def check_place(needs: Needs, stored: list[Arrays]) -> None:
    """Check every correlation of a place, and that nothing else is stored."""
    names = set()
    for stage, (need,) in needs.items():
        prefix = f"{stage}:{need.label('')}"
        parts = [
            {name.removeprefix(prefix): array for name, array in each.items() if name.startswith(prefix)}
            for each in stored
        ]
        assert [set(each) for each in parts] == [set(stored_parts(party, need.kind)) for party in range(2)]
        check_kind(need.kind, parts)
        names |= {prefix + name for each in parts for name in each}
    assert {name for each in stored for name in each} == names


def sizes(exchange: InMemoryExchange) -> dict[MessageKey, int]:
    return {key: payload.size for key, payload in exchange.messages.items()}


@pytest.mark.parametrize("provider", PROVIDERS)
def test_the_messages_of_the_set_up_are_as_planned(provider: Provider) -> None:
    setup = small_setup(provider, places=3)
    _, exchange = run_both(setup.protocol(), fresh_states())
    planned = [payload_size(spec) for spec in setup.message_specs().values()]
    sent = [size for key, size in sorted(sizes(exchange).items(), key=lambda each: each[0].address.stage)]
    assert sent == [size for size in planned for _ in PARTIES]


@settings(max_examples=6, deadline=None)
@given(count=st.integers(1, 40), provider=st.sampled_from(PROVIDERS))
def test_all_kinds_of_a_place(count: int, provider: Provider) -> None:
    setup, needs = small_setup(provider), needs_of(*kinds(count))
    states, _ = run_both(setup.protocol(), fresh_states())
    stored, exchange = make_place(setup, [each[0] for each in place_states(setup, states)], needs)
    check_place(needs, stored)
    place = OtPlace(setup, Address("store.0", 0, "", 0), needs)
    planned = {(r, NAMES[i]): spec for i in range(2) for r, spec in place.message_specs(i).items()}
    sent = {(key.address.stage.rpartition(".")[2], key.sender): size for key, size in sizes(exchange).items()}
    assert sent == {where: payload_size(spec) for where, spec in planned.items()}


def test_every_place_has_base_cots_of_its_own() -> None:
    setup = small_setup(places=7)
    states, _ = run_both(setup.protocol(), fresh_states())
    first, second = place_states(setup, states)
    deltas = [setup.delta(party, state) for party, state in zip(PARTIES, states, strict=True)]
    for mine, theirs in zip(first, second, strict=True):
        assert is_correlated(deltas[0], mine["base_q"], theirs["base_t"])
        assert is_correlated(deltas[1], theirs["base_q"], mine["base_t"])
    blocks = np.concatenate([place["base_q"] for place in first])
    assert len(np.unique(blocks, axis=0)) == len(blocks)
    needs = needs_of(Mul(2, (3,)))
    made = [make_place(setup, [first[i], second[i]], needs, iteration=i)[0] for i in (0, 6)]
    for stored in made:
        check_place(needs, stored)
    assert not (made[0][0]["stage.00:0/mul.a"] == made[1][0]["stage.00:0/mul.a"]).any()


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_retry_sends_the_same_and_a_fresh_peer_gets_new_masks(provider: Provider) -> None:
    """An exchange refuses another message under an old key; after a new nonce not one array is as before."""
    setup, needs, states = small_setup(provider), needs_of(*kinds(3)), fresh_states()

    def transcript(states: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        ready, exchange = run_both(setup.protocol(), states)
        _, of_place = make_place(setup, [each[0] for each in place_states(setup, ready)], needs)
        messages = {**exchange.messages, **of_place.messages}
        return {
            f"{key.address.stage} {key.sender} {name}": array
            for key, payload in messages.items()
            for name, array in from_stream(payload).items()
        }

    before = transcript(states)
    assert all((array == before[name]).all() for name, array in transcript(states).items())
    afresh = {**states[1], "contribution": np.frombuffer(os.urandom(32), np.uint8)}
    after = transcript([states[0], afresh])
    own = {name for name in before if "payco contribution" in name}
    same = {name for name in before if before[name].size and (before[name] == after[name]).all()}
    assert same == own


@pytest.mark.parametrize("provider", PROVIDERS)
def test_nothing_but_hashed_values_leaves(provider: Provider) -> None:
    """No block of a message, nor the sum of any two that lie beside each other, is a party's Δ, q or t."""
    setup, needs = small_setup(provider), needs_of(*kinds(64))
    states, exchange = run_both(setup.protocol(), fresh_states())
    ready = [each[0] for each in place_states(setup, states)]
    _, of_place = make_place(setup, ready, needs)
    secret = {setup.delta(party, state).tobytes() for party, state in zip(PARTIES, states, strict=True)}
    for state in [*states, *ready]:
        secret |= {row.tobytes() for name in ("start_q", "start_t", "base_q", "base_t") for row in state.get(name, ())}
    for payload in (*exchange.messages.values(), *of_place.messages.values()):
        for array in from_stream(payload).values():
            words = np.frombuffer(array.tobytes(), np.uint8)
            blocks = words[: len(words) // 16 * 16].view(np.uint64).reshape(-1, 2)
            sums = blocks[1:] ^ blocks[:-1]
            assert not secret & {row.tobytes() for row in (*blocks, *sums)}


@pytest.mark.parametrize("provider", PROVIDERS)
def test_corrections_are_balanced(provider: Provider) -> None:
    """Every bit of a correction is under a string that its receiver does not know."""
    setup, needs = small_setup(provider), needs_of(*kinds(320))
    states, _ = run_both(setup.protocol(), fresh_states())
    _, exchange = make_place(setup, [each[0] for each in place_states(setup, states)], needs)
    for key, payload in exchange.messages.items():
        if key.address.stage.endswith("correct"):
            for array in from_stream(payload).values():
                ones = np.unpackbits(np.frombuffer(array.tobytes(), np.uint8))
                if len(ones):
                    assert abs(ones.mean() - 0.5) < 5 * 0.5 / np.sqrt(len(ones))


def test_a_message_of_another_shape_is_refused() -> None:
    setup = small_setup()
    states, _ = run_both(setup.protocol(), fresh_states())
    ready = place_states(setup, states)[0][0]
    place = OtPlace(setup, Address("store.0", 0, "", 0), needs_of(DaBit(2, 5)))
    inbox = Inbox(PARTIES[0], {1: {"0": np.zeros((1, 1, 2), np.uint64)}})
    receive = place.protocol().rounds[0].receive
    with pytest.raises(RefusedError, match="expected"):
        receive(PARTIES[0], ready, inbox, None)  # type: ignore[arg-type]


def test_three_parties_are_refused() -> None:
    party = Party(0, ("a", "b", "c"))
    with pytest.raises(ConfigError, match="two parties"):
        small_setup().session(party, {}, sending=True)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("wanted", [(), (DaBit(2, 1),), (BitProducts(2, 1, (AND,)),), (Mul(2, (0,)),)])
def test_few_needs_or_none(provider: Provider, wanted: tuple[Kind, ...]) -> None:
    """A single value needs OTs in one direction only."""
    setup, needs = small_setup(provider), needs_of(*wanted)
    states, _ = run_both(setup.protocol(), fresh_states())
    stored, _ = make_place(setup, [each[0] for each in place_states(setup, states)], needs)
    check_place(needs, stored)
