"""Every kind by oblivious transfer of two and more parties, against plain integers; retries, nonces, transcripts."""

import os
from itertools import permutations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from support.ot_dealing import check_kind, is_correlated
from support.ot_stores import (
    fresh_states,
    make_place,
    parties,
    place_states,
    run_all,
    small_setup,
)
from support.parties import NAMES, InMemoryExchange
from veilmeans.crypto.correlations import BitProducts, DaBit, Inject, Kind, Mul, ProductGroups, Trunc
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Arrays, from_stream, payload_size
from veilmeans.schemas.errors import RefusedError
from veilmeans.schemas.message import MessageKey
from veilmeans.transforms.offline.ot_places import OtPlace, stored_parts
from veilmeans.transforms.offline.ot_setup import Provider, of_peer
from veilmeans.transforms.offline.traced_job import Needs
from veilmeans.transforms.rounds.interfaces import CorrelationNeed
from veilmeans.transforms.rounds.protocol import Inbox, Protocol

PROVIDERS: tuple[Provider, ...] = ("ot", "iknp")
AND = ProductGroups(2, 3, ((((0,), (1,)),), (((0,), (2,)),), (((0,), (1,), (2,)),)))
PAIR = ProductGroups(1, 4, ((((0,), (2,)),), (((0,), (2,), (1, 3)), ((1,), (3,)))))


def kinds(count: int, members: int = 2) -> list[Kind]:
    return [
        BitProducts(members, count, (AND,)),
        *([BitProducts(2, count, (PAIR,), known=True)] if members == 2 else []),
        DaBit(members, count),
        Inject(members, count),
        Inject(members, 3 * count, np.uint32, times=3),
        Mul(members, (count, 2)),
        Trunc(members, count, 20),
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
        assert [set(each) for each in parts] == [set(stored_parts(party, need.kind)) for party in range(len(stored))]
        check_kind(need.kind, parts)
        names |= {prefix + name for each in parts for name in each}
    assert {name for each in stored for name in each} == names


def sizes(exchange: InMemoryExchange) -> dict[MessageKey, int]:
    return {key: payload.size for key, payload in exchange.messages.items()}


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("members", [2, 3])
def test_the_messages_of_the_set_up_are_as_planned(provider: Provider, members: int) -> None:
    setup = small_setup(provider, places=3)
    _, exchange = run_all(setup.protocol(), fresh_states(members))
    planned = [payload_size(spec) for spec in setup.message_specs().values()]
    sent = [size for key, size in sorted(sizes(exchange).items(), key=lambda each: each[0].address.stage)]
    assert sent == [size for size in planned for _ in range(members * (members - 1))]


@settings(max_examples=8, deadline=None)
@given(count=st.integers(1, 40), provider=st.sampled_from(PROVIDERS), members=st.integers(2, 3))
@example(count=5, provider="ot", members=4)
def test_all_kinds_of_a_place(count: int, provider: Provider, members: int) -> None:
    setup, needs = small_setup(provider), needs_of(*kinds(count, members))
    states, _ = run_all(setup.protocol(), fresh_states(members))
    stored, exchange = make_place(setup, [each[0] for each in place_states(setup, states)], needs)
    check_place(needs, stored)
    place = OtPlace(setup, Address("store.0", 0, "", 0), needs)
    planned = {
        (f"ot.{number:02d}.{name}", NAMES[i], NAMES[j]): payload_size(spec)
        for i, j in permutations(range(members), 2)
        for number, (name, spec) in enumerate(place.message_specs(i, j))
    }
    assert {(key.address.stage, key.sender, key.recipient): size for key, size in sizes(exchange).items()} == planned
    assert len(place.protocol()) == (2 if members == 2 else members + 1)


def test_a_place_may_wait_for_others_with_more_rounds() -> None:
    setup, needs = small_setup(), needs_of(Mul(3, (2,)))
    states, _ = run_all(setup.protocol(), fresh_states(3))
    place = OtPlace(setup, Address("store.0", 0, "", 0), needs, least_corrections=3)
    stored, exchange = run_all(place.protocol(), [each[0] for each in place_states(setup, states)])
    check_place(needs, stored)
    planned = [payload_size(spec) for _, spec in place.message_specs(0, 1)]
    assert len(planned) == 4
    sent = [size for key, size in sizes(exchange).items() if (key.sender, key.recipient) == NAMES[:2]]
    assert sorted(sent) == sorted(planned)


@pytest.mark.parametrize("members", [2, 3])
def test_every_place_has_base_cots_of_its_own(members: int) -> None:
    setup = small_setup(places=7)
    states, _ = run_all(setup.protocol(), fresh_states(members))
    ready, party = place_states(setup, states), parties(members)
    for i, j in permutations(range(members), 2):
        delta = setup.delta(party[i], states[i], j)
        for mine, theirs in zip(ready[i], ready[j], strict=True):
            q, t = of_peer(party[i], mine["base_q"], j), of_peer(party[j], theirs["base_t"], i)
            assert is_correlated(delta, q, t)
    blocks = np.concatenate([place["base_q"].reshape(-1, 2) for each in ready for place in each])
    assert len(np.unique(blocks, axis=0)) == len(blocks)
    needs = needs_of(Mul(members, (3,)))
    made = [make_place(setup, [each[i] for each in ready], needs, iteration=i)[0] for i in (0, 6)]
    for stored in made:
        check_place(needs, stored)
    assert not (made[0][0]["stage.00:0/mul.a"] == made[1][0]["stage.00:0/mul.a"]).any()


@pytest.mark.parametrize("provider", PROVIDERS)
def test_choice_bits_are_common_to_all_peers_and_nothing_else_is(provider: Provider) -> None:
    """Δ, strings and messages are each pair's own: peers with other choice bits would have both strings."""
    setup, needs, members = small_setup(provider), needs_of(*kinds(40, 3)), parties(3)
    states, exchange = run_all(setup.protocol(), fresh_states(3))
    place = OtPlace(setup, Address("store.0", 0, "", 0), needs)
    ready = [each[0] for each in place_states(setup, states)]
    made, of_place = run_all(Protocol("ot", place.protocol().rounds[:1]), ready)
    for party, state in zip(members, made, strict=True):
        own, other = party.others
        assert (setup.delta(party, state, own) != setup.delta(party, state, other)).any()
        for number, request in enumerate(place.requests):
            if request.chooser == party.index:
                first, second = (state[f"ot{number}.{peer}.first"] for peer in party.others)
                assert (state[f"ot{number}.{own}.second"] == state[f"ot{number}.{other}.second"]).all()
                assert not (first == second).any()
    sent: dict[tuple[str, str, str], list[np.ndarray]] = {}
    for key, payload in (*exchange.messages.items(), *of_place.messages.items()):
        for name, array in from_stream(payload).items():
            sent.setdefault((key.address.stage, key.sender, name), []).append(array)
    same = {where for where, (one, two) in sent.items() if np.array_equal(one, two)}
    assert same == {where for where in sent if where[2] == "contribution"}


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("members", [2, 3])
def test_a_retry_sends_the_same_and_a_fresh_peer_gets_new_masks(provider: Provider, members: int) -> None:
    """An exchange refuses another message under an old key; after a new nonce not one array is as before."""
    setup, needs, states = small_setup(provider), needs_of(*kinds(3, members)), fresh_states(members)

    def transcript(states: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        ready, exchange = run_all(setup.protocol(), states)
        _, of_place = make_place(setup, [each[0] for each in place_states(setup, ready)], needs)
        messages = {**exchange.messages, **of_place.messages}
        return {
            f"{key.address.stage} {key.sender} {key.recipient} {name}": array
            for key, payload in messages.items()
            for name, array in from_stream(payload).items()
        }

    before = transcript(states)
    assert all((array == before[name]).all() for name, array in transcript(states).items())
    afresh = {**states[1], "contribution": np.frombuffer(os.urandom(32), np.uint8)}
    after = transcript([states[0], afresh, *states[2:]])
    own = {name for name in before if name.endswith(" contribution") and name.split()[1] != NAMES[1]}
    same = {name for name in before if before[name].size and (before[name] == after[name]).all()}
    assert same == own


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("members", [2, 3])
def test_nothing_but_hashed_values_leaves(provider: Provider, members: int) -> None:
    """No block of a message, nor the sum of any two that lie beside each other, is a party's Δ, q or t."""
    setup, needs = small_setup(provider), needs_of(*kinds(64, members))
    states, exchange = run_all(setup.protocol(), fresh_states(members))
    ready = [each[0] for each in place_states(setup, states)]
    _, of_place = make_place(setup, ready, needs)
    secret = {
        setup.delta(party, state, peer).tobytes()
        for party, state in zip(parties(members), states, strict=True)
        for peer in party.others
    }
    for state in [*states, *ready]:
        kept = [state[name] for name in ("start_q", "start_t", "base_q", "base_t") if name in state]
        secret |= {row.tobytes() for blocks in kept for row in blocks.reshape(-1, 2)}
    for payload in (*exchange.messages.values(), *of_place.messages.values()):
        for array in from_stream(payload).values():
            words = np.frombuffer(array.tobytes(), np.uint8)
            blocks = words[: len(words) // 16 * 16].view(np.uint64).reshape(-1, 2)
            sums = blocks[1:] ^ blocks[:-1]
            assert not secret & {row.tobytes() for row in (*blocks, *sums)}


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("members", [2, 3])
def test_corrections_are_balanced(provider: Provider, members: int) -> None:
    """Every bit of a correction is under a string that its receiver does not know."""
    setup, needs = small_setup(provider), needs_of(*kinds(320, members))
    states, _ = run_all(setup.protocol(), fresh_states(members))
    _, exchange = make_place(setup, [each[0] for each in place_states(setup, states)], needs)
    for key, payload in exchange.messages.items():
        if key.address.stage.endswith("correct"):
            for array in from_stream(payload).values():
                ones = np.unpackbits(np.frombuffer(array.tobytes(), np.uint8))
                if len(ones):
                    assert abs(ones.mean() - 0.5) < 5 * 0.5 / np.sqrt(len(ones))


def test_a_message_of_another_shape_is_refused() -> None:
    setup = small_setup()
    states, _ = run_all(setup.protocol(), fresh_states())
    ready, party = place_states(setup, states)[0][0], parties(2)[0]
    place = OtPlace(setup, Address("store.0", 0, "", 0), needs_of(DaBit(2, 5)))
    inbox = Inbox(party, {1: {"0": np.zeros((1, 1, 2), np.uint64)}})
    receive = place.protocol().rounds[0].receive
    with pytest.raises(RefusedError, match="expected"):
        receive(party, ready, inbox, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(
    ("members", "wanted"),
    [
        (2, ()),
        (3, ()),
        (2, (DaBit(2, 1),)),
        (3, (DaBit(3, 1),)),
        (2, (BitProducts(2, 1, (AND,)),)),
        (2, (Mul(2, (0,)),)),
        (3, (Mul(3, (0,)),)),
    ],
)
def test_few_needs_or_none(provider: Provider, members: int, wanted: tuple[Kind, ...]) -> None:
    """A single value of two parties needs OTs in one direction only."""
    setup, needs = small_setup(provider), needs_of(*wanted)
    states, _ = run_all(setup.protocol(), fresh_states(members))
    stored, _ = make_place(setup, [each[0] for each in place_states(setup, states)], needs)
    check_place(needs, stored)
