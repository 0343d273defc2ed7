"""The correlations of one place, made by two parties with oblivious transfers in two rounds, however many there are.

A place is what one shard of one iteration needs of a store. Its OTs come from base COTs of its own (provider `ot`), or
from the base OTs' keys (`iknp`).

  extend     all OTs, in both directions: trees' sums from the party that sends COTs, or IKNP's columns from the one
             that receives them
  correct    each kind's corrections (`crypto.ot.kinds.ot_recipes`)

State before: `seed`, `nonce` and, for `ot`, `base_q` and `base_t`, for `iknp`, `keys` and `pairs`. After: the parts
that the store keeps, by their names there.
"""

from collections.abc import Iterator, Sequence
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
from veilmeans.transforms.offline.ot_setup import OtSetup, base_keys, base_pairs
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
    """One place of a store; `address` is the store's own, with any stage."""

    setup: OtSetup
    address: Address
    needs: Needs

    def protocol(self) -> Protocol:
        """The two rounds of the place."""
        extend = partial(_send_extension, self), partial(_receive_extension, self)
        correct = partial(_send_corrections, self), partial(_receive_corrections, self)
        return Protocol(
            "ot",
            (
                Round("extend", *extend, sends="messages of random OTs"),
                Round("correct", *correct, sends="corrections of OTs"),
            ),
        )

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
        """COTs that the party `chooser` receives."""
        return count_cots(self.requests, chooser)

    def session(self, party: Party, state: Arrays, sending: bool) -> OtSession:
        """One direction of the session at this place."""
        where = Address(self.address.run, self.address.iteration, "ot-place", self.address.shard)
        return self.setup.session(party, state, sending, where)

    def extension_shapes(self, sender: int) -> list[tuple[int, ...]]:
        """The shapes of the arrays that party `sender` sends to extend OTs."""
        if self.setup.provider == "ot":
            main = self.setup.main
            return [main.message_shape(count) for count in silent_rounds(main, self.cots(1 - sender))]
        return [iknp.message_shape(count) for count in iknp_batches(self.cots(sender))]

    def message_specs(self, sender: int) -> dict[str, Spec]:
        """The arrays of the messages of party `sender`, by round, for plans."""
        extension = enumerate(self.extension_shapes(sender))
        return {
            "extend": tuple(ArraySpec(f"{number}", _WORDS, shape) for number, shape in extension),
            "correct": tuple(
                ArraySpec(f"{number}/{name}", np.dtype(dtype).str, shape)
                for number, each in enumerate(self.place_needs)
                for name, (shape, dtype) in each.recipe.message_shapes(sender).items()
            ),
        }

    def key(self, session: OtSession, need: PlaceNeed) -> bytes:
        """This party's secret for one correlation."""
        return session.secret(f"correlation {need.stored_name('')}")


def stored_parts(party: int, kind: Kind) -> list[str]:
    """The names of the parts that a store made by OTs keeps at `party`: all that it holds."""
    parts = (*kind.uniform_parts(), *kind.determined_parts())
    return [part.name for part in parts if party in part.holders]


# the two rounds
def _send_extension(place: OtPlace, party: Party, state: Arrays, _randomness: Randomness) -> Sent:
    messages: Sequence[Array]
    if place.setup.provider == "ot":
        session, delta = place.session(party, state, sending=True), place.setup.delta(party, state)
        sender = SilentSender(place.setup.main, session, delta, state["base_q"], place.cots(1 - party.index))
        sides = _offered(place, party, state, sender.supply())
        messages = sender.messages
        kept = {**without(state, "base_q"), **sides}
    else:
        session = place.session(party, state, sending=False)
        receiver = IknpReceiver(session, base_pairs(state), place.cots(party.index))
        kept = {**without(state, "pairs"), **_chosen(place, party, state, receiver.supply())}
        messages = receiver.messages
    return Sent(kept, {f"{number}": message for number, message in enumerate(messages)})


def _receive_extension(place: OtPlace, party: Party, state: Arrays, inbox: Inbox, _randomness: Randomness) -> Arrays:
    peer = 1 - party.index
    shapes = place.extension_shapes(peer)
    received = [inbox.from_peer(peer, f"{i}", np.zeros(shape, np.uint64)) for i, shape in enumerate(shapes)]
    if place.setup.provider == "ot":
        session = place.session(party, state, sending=False)
        supply = silent_receiver(place.setup.main, session, state["base_t"], received, place.cots(party.index))
        return {**without(state, "base_t"), **_chosen(place, party, state, supply)}
    session, delta = place.session(party, state, sending=True), place.setup.delta(party, state)
    supply = iknp_sender(session, base_keys(state), delta, received, place.cots(peer))
    return {**without(state, "keys"), **_offered(place, party, state, supply)}


def _send_corrections(place: OtPlace, party: Party, state: Arrays, _randomness: Randomness) -> Sent:
    session, message = place.session(party, state, sending=True), {}
    for number, (need, sides) in enumerate(_sides(place, state)):
        for name, array in need.recipe.message(party.index, sides, place.key(session, need)).items():
            message[f"{number}/{name}"] = array
    return Sent(state, message)


def _receive_corrections(place: OtPlace, party: Party, state: Arrays, inbox: Inbox, _randomness: Randomness) -> Arrays:
    session, peer = place.session(party, state, sending=True), 1 - party.index
    received = {
        each.name: inbox.from_peer(peer, each.name, np.empty(each.shape, each.dtype))
        for each in place.message_specs(peer)["correct"]
    }
    stored: dict[str, Array] = {}
    for number, (need, sides) in enumerate(_sides(place, state)):
        shapes = need.recipe.message_shapes(peer)
        message = {name: received[f"{number}/{name}"] for name in shapes}
        parts = need.recipe.parts(party.index, sides, place.key(session, need), message)
        stored |= {need.stored_name(name): parts[name] for name in stored_parts(party.index, need.need.kind)}
    return stored


# OTs in a state
def _offered(place: OtPlace, party: Party, state: Arrays, supply: Supply) -> dict[str, Array]:
    """The sides of all requests in which the peer chooses."""
    session, delta = place.session(party, state, sending=True), place.setup.delta(party, state)
    ots = RandomOtSender(supply, delta, HashKeys.of(session))
    asked = [(i, each) for i, each in enumerate(place.requests) if each.chooser != party.index]
    return _named((number, take_offered(ots, request)) for number, request in asked)


def _chosen(place: OtPlace, party: Party, state: Arrays, supply: Supply) -> dict[str, Array]:
    """The sides of all requests in which this party chooses."""
    ots = RandomOtReceiver(supply, HashKeys.of(place.session(party, state, sending=False)))
    asked = [(i, each) for i, each in enumerate(place.requests) if each.chooser == party.index]
    return _named((number, take_chosen(ots, request)) for number, request in asked)


def _named(sides: Iterator[tuple[int, OtSide]]) -> dict[str, Array]:
    named: dict[str, Array] = {}
    for number, side in sides:
        named |= {f"ot{number}.first": side.first, f"ot{number}.second": side.second}
    return named


def _sides(place: OtPlace, state: Arrays) -> Iterator[tuple[PlaceNeed, list[OtSide]]]:
    for each in place.place_needs:
        yield each, [OtSide(state[f"ot{i}.first"], state[f"ot{i}.second"]) for i in each.requests]
