"""The correlations of one place, made by oblivious transfers in a few rounds, however many there are.

A place is what one shard of one iteration needs of a store. Its OTs, for every pair of parties, come from base COTs of
its own (provider `ot`), or from the base OTs' keys (`iknp`).

  extend     all OTs, in both directions: trees' sums from the party that sends COTs, or IKNP's columns from the one
             that receives them
  correct    each kind's corrections (`crypto.ot.kinds.ot_recipes`); with more than two parties some wait for others, so
             there are as many of these rounds as the kinds need: `correction_rounds`

State before: `seed`, `nonce` and, for `ot`, `base_q` and `base_t`, for `iknp`, `keys` and `pairs`. After: the parts
that the store keeps, by their names there.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from veilmeans.crypto.correlations import Kind, made_by_ot
from veilmeans.crypto.ot import iknp
from veilmeans.crypto.ot.cot_supply import (
    IknpReceiver,
    SilentSender,
    Supply,
    iknp_batches,
    iknp_sender,
    silent_receiver,
    silent_rounds,
)
from veilmeans.crypto.ot.kinds.ot_recipes import OtRecipe, recipe_for
from veilmeans.crypto.ot.ot_arrays import OtRequest, OtSide, count_cots, take_chosen, take_offered
from veilmeans.crypto.ot.ot_session import OtSession
from veilmeans.crypto.ot.random_ot import HashKeys, RandomOtReceiver, RandomOtSender
from veilmeans.io.storage.triple_store import correction_name
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Array, Arrays, ArraySpec, Spec
from veilmeans.schemas.party import Party
from veilmeans.transforms.offline.ot_setup import OtSetup, base_keys, base_pairs, of_peer
from veilmeans.transforms.offline.traced_job import Needs
from veilmeans.transforms.rounds.interfaces import CorrelationNeed, Randomness
from veilmeans.transforms.rounds.protocol import Inbox, Protocol, Round, Sent, without

_WORDS = np.dtype(np.uint64).str


@dataclass(frozen=True)
class PlaceNeed:
    """One correlation of a place, and the numbers of its OT requests among all of the place."""

    stage: str
    need: CorrelationNeed
    recipe: OtRecipe
    requests: range

    def stored_name(self, part: str) -> str:
        """The name of a part in the store."""
        return correction_name(self.stage, self.need.label(part))


@dataclass(frozen=True)
class OtPlace:
    """One place of a store; `address` is the store's own, with any stage.

    `least_corrections`: so many rounds of corrections at least, empty ones if need be, where other places have them.
    """

    setup: OtSetup
    address: Address
    needs: Needs
    least_corrections: int = 1

    def protocol(self) -> Protocol:
        """The rounds of the place."""
        extend = partial(_send_extension, self), partial(_receive_extension, self)
        rounds = [Round("extend", *extend, sends="messages of random OTs", broadcast=False)]
        for number in range(self.correction_rounds):
            correct = partial(_send_corrections, self, number), partial(_receive_corrections, self, number)
            rounds.append(Round("correct", *correct, sends="corrections of OTs", broadcast=False))
        return Protocol("ot", tuple(rounds)).then(partial(_store_parts, self))

    @property
    def correction_rounds(self) -> int:
        """The rounds of corrections: one is enough between two parties."""
        return max(self.least_corrections, correction_rounds([self.needs]))

    @cached_property
    def place_needs(self) -> tuple[PlaceNeed, ...]:
        """The correlations that OTs make, in the order in which they use the OTs up."""
        found, start = [], 0
        for stage, needs in self.needs.items():
            for need in needs:
                if made_by_ot(need.kind):
                    recipe = recipe_for(need.kind)
                    count = len(recipe.requests())
                    found.append(PlaceNeed(stage, need, recipe, range(start, start + count)))
                    start += count
        return tuple(found)

    @cached_property
    def requests(self) -> tuple[OtRequest, ...]:
        return tuple(request for each in self.place_needs for request in each.recipe.requests())

    def cots(self, chooser: int) -> int:
        """COTs that the party `chooser` receives of each peer."""
        return count_cots(self.requests, chooser)

    def session(self, party: Party, state: Arrays, peer: int, sending: bool) -> OtSession:
        """One direction of the session with a peer at this place."""
        where = Address(self.address.run, self.address.iteration, "ot-place", self.address.shard)
        return self.setup.session(party, state, peer, sending, where)

    def extension_shapes(self, sender: int, recipient: int) -> list[tuple[int, ...]]:
        """The shapes of the arrays that party `sender` sends to extend OTs."""
        if self.setup.provider == "ot":
            main = self.setup.main
            return [main.message_shape(count) for count in silent_rounds(main, self.cots(recipient))]
        return [iknp.message_shape(count) for count in iknp_batches(self.cots(sender))]

    def message_specs(self, sender: int, recipient: int) -> list[tuple[str, Spec]]:
        """Each round's name, and the arrays of the message of one party to another in it, for plans."""
        extension = enumerate(self.extension_shapes(sender, recipient))
        corrections = (self.correction_spec(number, sender, recipient) for number in range(self.correction_rounds))
        return [
            ("extend", tuple(ArraySpec(f"{number}", _WORDS, shape) for number, shape in extension)),
            *(("correct", spec) for spec in corrections),
        ]

    def correction_spec(self, number: int, sender: int, recipient: int) -> Spec:
        """The arrays of one round's corrections."""
        return tuple(
            ArraySpec(f"{i}/{name}", np.dtype(dtype).str, shape)
            for i, each in enumerate(self.place_needs)
            if number < each.recipe.messages
            for name, (shape, dtype) in each.recipe.message_shapes(number, sender, recipient).items()
        )

    def key(self, party: Party, state: Arrays, need: PlaceNeed) -> bytes:
        """This party's secret for one correlation."""
        session = self.session(party, state, party.others[0], sending=True)
        return session.secret(f"correlation {need.stored_name('')}")


def correction_rounds(places: Iterable[Needs]) -> int:
    """The rounds of corrections that all these places have, those of the place that needs most."""
    kinds = {need.kind for needs in places for stage in needs.values() for need in stage}
    return max([1, *(recipe_for(kind).messages for kind in kinds if made_by_ot(kind))])


def stored_parts(party: int, kind: Kind) -> list[str]:
    """The names of the parts that a store made by OTs keeps at `party`: all that it holds."""
    parts = (*kind.uniform_parts(), *kind.determined_parts())
    return [part.name for part in parts if party in part.holders]


# the rounds
def _send_extension(place: OtPlace, party: Party, state: Arrays, _randomness: Randomness) -> Sent:
    messages, sides = {}, []
    silent = place.setup.provider == "ot"
    for peer in party.others:
        session = place.session(party, state, peer, sending=silent)
        if silent:
            delta, base = place.setup.delta(party, state, peer), of_peer(party, state["base_q"], peer)
            sender = SilentSender(place.setup.main, session, delta, base, place.cots(peer))
            sides.append(_offered(place, party, state, peer, sender.supply()))
            messages[peer] = sender.messages
        else:
            receiver = IknpReceiver(session, base_pairs(party, state, peer), place.cots(party.index))
            sides.append(_chosen(place, party, state, peer, receiver.supply()))
            messages[peer] = receiver.messages
    kept = {**without(state, "base_q" if silent else "pairs"), **_merged(sides)}
    numbered = {peer: {f"{i}": array for i, array in enumerate(arrays)} for peer, arrays in messages.items()}
    return Sent(kept, to=numbered)


def _receive_extension(place: OtPlace, party: Party, state: Arrays, inbox: Inbox, _randomness: Randomness) -> Arrays:
    sides = []
    silent = place.setup.provider == "ot"
    for peer in party.others:
        shapes = place.extension_shapes(peer, party.index)
        received = [inbox.from_peer(peer, f"{i}", np.zeros(shape, np.uint64)) for i, shape in enumerate(shapes)]
        session = place.session(party, state, peer, sending=not silent)
        if silent:
            base = of_peer(party, state["base_t"], peer)
            supply = silent_receiver(place.setup.main, session, base, received, place.cots(party.index))
            sides.append(_chosen(place, party, state, peer, supply))
        else:
            delta, keys = place.setup.delta(party, state, peer), base_keys(party, state, peer)
            supply = iknp_sender(session, keys, delta, received, place.cots(peer))
            sides.append(_offered(place, party, state, peer, supply))
    return {**without(state, "base_t" if silent else "keys"), **_merged(sides)}


def _send_corrections(place: OtPlace, number: int, party: Party, state: Arrays, _randomness: Randomness) -> Sent:
    messages: dict[int, dict[str, Array]] = {peer: {} for peer in party.others}
    for i, need in enumerate(place.place_needs):
        if number < need.recipe.messages:
            key, so_far = place.key(party, state, need), _received(place, i, number, party, state)
            for peer, arrays in need.recipe.message(party.index, _sides(need, party, state), key, so_far).items():
                messages[peer] |= {f"{i}/{name}": array for name, array in arrays.items()}
    return Sent(state, to=messages)


def _receive_corrections(
    place: OtPlace, number: int, party: Party, state: Arrays, inbox: Inbox, _randomness: Randomness
) -> Arrays:
    received = {
        f"ot.message{number}.{peer}/{each.name}": inbox.from_peer(peer, each.name, np.empty(each.shape, each.dtype))
        for peer in party.others
        for each in place.correction_spec(number, peer, party.index)
    }
    return {**state, **received}


def _store_parts(place: OtPlace, party: Party, state: Arrays) -> Arrays:
    stored: dict[str, Array] = {}
    for i, need in enumerate(place.place_needs):
        key, received = place.key(party, state, need), _received(place, i, need.recipe.messages, party, state)
        parts = need.recipe.parts(party.index, _sides(need, party, state), key, received)
        stored |= {need.stored_name(name): parts[name] for name in stored_parts(party.index, need.need.kind)}
    return stored


# OTs and messages in a state
def _offered(place: OtPlace, party: Party, state: Arrays, peer: int, supply: Supply) -> dict[str, Array]:
    """The sides of all requests in which the peer chooses."""
    session, delta = place.session(party, state, peer, sending=True), place.setup.delta(party, state, peer)
    ots = RandomOtSender(supply, delta, HashKeys.of(session))
    asked = [(i, each) for i, each in enumerate(place.requests) if each.chooser == peer]
    return _named(peer, ((number, take_offered(ots, request)) for number, request in asked))


def _chosen(place: OtPlace, party: Party, state: Arrays, peer: int, supply: Supply) -> dict[str, Array]:
    """The sides of all requests in which this party chooses, with one peer."""
    ots = RandomOtReceiver(supply, HashKeys.of(place.session(party, state, peer, sending=False)))
    asked = [(i, each) for i, each in enumerate(place.requests) if each.chooser == party.index]
    return _named(peer, ((number, take_chosen(ots, request)) for number, request in asked))


def _named(peer: int, sides: Iterator[tuple[int, OtSide]]) -> dict[str, Array]:
    named: dict[str, Array] = {}
    for number, side in sides:
        named |= {f"ot{number}.{peer}.first": side.first, f"ot{number}.{peer}.second": side.second}
    return named


def _merged(sides: Sequence[dict[str, Array]]) -> dict[str, Array]:
    return {name: array for each in sides for name, array in each.items()}


def _sides(need: PlaceNeed, party: Party, state: Arrays) -> list[dict[int, OtSide]]:
    """This party's sides of a correlation's requests, by peer."""
    return [
        {
            peer: OtSide(state[f"ot{i}.{peer}.first"], state[f"ot{i}.{peer}.second"])
            for peer in party.others
            if f"ot{i}.{peer}.first" in state
        }
        for i in need.requests
    ]


def _received(place: OtPlace, i: int, count: int, party: Party, state: Arrays) -> list[dict[int, Arrays]]:
    """The first `count` messages for correlation `i`, by peer."""

    def message(number: int, peer: int) -> Arrays:
        shapes = place.place_needs[i].recipe.message_shapes(number, peer, party.index)
        return {name: state[f"ot.message{number}.{peer}/{i}/{name}"] for name in shapes}

    return [{peer: message(number, peer) for peer in party.others} for number in range(count)]
