"""Set-up of oblivious transfers between two parties: once for a store, in five rounds on the bare executor.

  nonce     each sends a contribution of its own; the session's nonce is the hash of both
  points    base OTs, in both directions: A at the one that will receive COTs …
  choices   … and B_i at the one that will send them, whose Δ are the choice bits
  columns   IKNP: the COTs of the set-up round (with provider `ot`)
  trees     the messages of the set-up round and of the rounds that make the base COTs of every place

State before: `seed` (32 bytes, secret) and `contribution` (32 bytes, drawn for this store and kept with it), so that a
rerun sends the same and a party that lost its folder has another nonce. After: `nonce`, `pairs` and `keys` (of the base
OTs) and, with provider `ot`, `start_q`, `start_t` and the peer's `trees`, from which `base_cots` makes the base COTs of
each place.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from veilmeans.crypto.ot import base_ot, iknp, silent_ot
from veilmeans.crypto.ot.blocks import Blocks, make_delta
from veilmeans.crypto.ot.cot_supply import SilentSender, silent_receiver, silent_rounds
from veilmeans.crypto.ot.ot_session import NONCE_SIZE, OtSession, join_nonces
from veilmeans.crypto.ot.silent_ot import MAIN, SETUP, LpnParameters
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Array, Arrays, ArraySpec, Spec
from veilmeans.schemas.errors import ConfigError
from veilmeans.schemas.party import Party
from veilmeans.transforms.rounds.interfaces import Randomness
from veilmeans.transforms.rounds.protocol import Inbox, Protocol, Round, Sent, without

Provider = Literal["ot", "iknp"]
_START = SETUP.cut_to(MAIN.base)
"""The set of the set-up round, which makes the base of the first main round."""


@dataclass(frozen=True)
class OtSetup:
    """The set-up of a store's OTs for `places` places. `setup` and `main` are the LPN sets."""

    store: str
    places: int
    provider: Provider = "ot"
    setup: LpnParameters = _START
    main: LpnParameters = MAIN

    def protocol(self) -> Protocol:
        """The rounds of the set-up."""
        rounds = [
            Round(
                "nonce",
                partial(_send_nonce, self),
                partial(_receive_nonce, self),
                "a contribution to the session's nonce",
            ),
            Round("points", partial(_send_point, self), partial(_receive_point, self), "A of the base OTs"),
            Round("choices", partial(_send_choices, self), partial(_receive_choices, self), "B of the base OTs"),
        ]
        if self.provider == "ot":
            rounds += [
                Round("columns", partial(_send_columns, self), partial(_receive_columns, self), "u of IKNP"),
                Round("trees", partial(_send_trees, self), partial(_receive_trees, self), "sums of half trees"),
            ]
        return Protocol("ot-setup", tuple(rounds))

    def session(self, party: Party, state: Arrays, sending: bool, address: Address | None = None) -> OtSession:
        """One direction of the session: this party sends COTs, or receives them."""
        if party.count != 2:
            raise ConfigError(f"triples.provider is {self.provider}, which needs two parties, not {party.count}")
        me, peer = party.index, 1 - party.index
        sender, receiver = (me, peer) if sending else (peer, me)
        where = address or Address(self.store, 0, "ot-setup", 0)
        return OtSession(state["seed"].tobytes(), state["nonce"].tobytes(), sender, receiver, where)

    def delta(self, party: Party, state: Arrays) -> Blocks:
        """This party's Δ: one for the store."""
        return make_delta(self.session(party, state, sending=True).secret("delta"))

    def base_cots(self, party: Party, state: Arrays) -> Iterator[tuple[Blocks, Blocks]]:
        """Make the base COTs of each place in turn: those that this party sends, and those that it receives."""
        count = self.places * self.main.base
        sending = self._place_sender(party, state)
        receiving = silent_receiver(
            self.main,
            self.session(party, state, sending=False, address=self._places_address),
            state["start_t"],
            self._tree_messages(state["trees"])[1:],
            count,
        )
        made = sending.supply()
        for _ in range(self.places):
            yield made.take(self.main.base), receiving.take(self.main.base)

    def _place_sender(self, party: Party, state: Arrays) -> SilentSender:
        session = self.session(party, state, sending=True, address=self._places_address)
        count = self.places * self.main.base
        return SilentSender(self.main, session, self.delta(party, state), state["start_q"], count)

    @property
    def _places_address(self) -> Address:
        return Address(self.store, 0, "ot-places", 0)

    def _tree_shapes(self) -> list[tuple[int, ...]]:
        """The shapes of the messages: of the set-up round, and of the rounds for the places."""
        rounds = silent_rounds(self.main, self.places * self.main.base)
        return [self.setup.message_shape(self.main.base), *(self.main.message_shape(count) for count in rounds)]

    def _tree_messages(self, trees: Array) -> list[Array]:
        """Cut all trees' messages, one array of blocks, by rounds."""
        shapes = self._tree_shapes()
        ends = np.cumsum([int(np.prod(shape[:-1])) for shape in shapes])
        return [part.reshape(shape) for part, shape in zip(np.split(trees, ends[:-1]), shapes, strict=True)]

    def message_specs(self) -> dict[str, Spec]:
        """The arrays of either party's messages, by round."""
        octets, words = np.dtype(np.uint8).str, np.dtype(np.uint64).str
        specs = {
            "nonce": ArraySpec("contribution", octets, (NONCE_SIZE,)),
            "points": ArraySpec("a", octets, (base_ot.POINT_SIZE,)),
            "choices": ArraySpec("b", octets, (iknp.COLUMNS, base_ot.POINT_SIZE)),
        }
        if self.provider == "ot":
            blocks = sum(int(np.prod(shape[:-1])) for shape in self._tree_shapes())
            specs["columns"] = ArraySpec("u", words, iknp.message_shape(self.setup.base))
            specs["trees"] = ArraySpec("trees", words, (blocks, 2))
        return {name: (spec,) for name, spec in specs.items()}


def _from_peer(job: OtSetup, party: Party, inbox: Inbox, name: str) -> Array:
    """The one array of the peer's message of the round `name`."""
    (spec,) = job.message_specs()[name]
    return inbox.from_peer(1 - party.index, spec.name, np.empty(spec.shape, spec.dtype))


def _send_nonce(_job: OtSetup, _party: Party, state: Arrays, _randomness: Randomness) -> Sent:
    return Sent(state, {"contribution": state["contribution"]})


def _receive_nonce(job: OtSetup, party: Party, state: Arrays, inbox: Inbox, _randomness: Randomness) -> Arrays:
    mine, theirs = state["contribution"], _from_peer(job, party, inbox, "nonce")
    ordered = [mine, theirs] if party.first else [theirs, mine]
    nonce = join_nonces([each.tobytes() for each in ordered])
    return {**state, "nonce": np.frombuffer(nonce, np.uint8)}


def _send_point(job: OtSetup, party: Party, state: Arrays, _randomness: Randomness) -> Sent:
    point = base_ot.sender_point(job.session(party, state, sending=False))
    return Sent(state, {"a": np.frombuffer(point, np.uint8)})


def _receive_point(job: OtSetup, party: Party, state: Arrays, inbox: Inbox, _randomness: Randomness) -> Arrays:
    return {**state, "a": _from_peer(job, party, inbox, "points")}


def _send_choices(job: OtSetup, party: Party, state: Arrays, _randomness: Randomness) -> Sent:
    session = job.session(party, state, sending=True)
    chosen, a_point = iknp.delta_bits(job.delta(party, state)), state["a"].tobytes()
    points = base_ot.receiver_points(session, chosen, a_point)
    keys = base_ot.receiver_keys(session, chosen, a_point)
    return Sent({**without(state, "a"), "keys": _rows(keys)}, {"b": _rows(points)})


def _receive_choices(job: OtSetup, party: Party, state: Arrays, inbox: Inbox, _randomness: Randomness) -> Arrays:
    points = _from_peer(job, party, inbox, "choices")
    pairs = base_ot.sender_keys(job.session(party, state, sending=False), [point.tobytes() for point in points])
    return {**state, "pairs": np.stack([_rows(pair) for pair in pairs])}


def _send_columns(job: OtSetup, party: Party, state: Arrays, _randomness: Randomness) -> Sent:
    session = job.session(party, state, sending=False)
    cots, message = iknp.extend_receiver(session, "set-up", base_pairs(state), job.setup.base)
    return Sent({**state, "base_t": cots}, {"u": message})


def _receive_columns(job: OtSetup, party: Party, state: Arrays, inbox: Inbox, _randomness: Randomness) -> Arrays:
    message = _from_peer(job, party, inbox, "columns")
    session, delta = job.session(party, state, sending=True), job.delta(party, state)
    cots = iknp.extend_sender(session, "set-up", base_keys(state), delta, message, job.setup.base)
    return {**state, "base_q": cots}


def _send_trees(job: OtSetup, party: Party, state: Arrays, _randomness: Randomness) -> Sent:
    session, delta = job.session(party, state, sending=True), job.delta(party, state)
    start, first = silent_ot.extend_sender(job.setup, session, "set-up", delta, state["base_q"], job.main.base)
    state = {**without(state, "base_q"), "start_q": start}
    places = job._place_sender(party, state)
    made = places.supply()
    for _ in range(job.places):
        made.take(job.main.base)
    trees = np.concatenate([message.reshape(-1, 2) for message in (first, *places.messages)])
    return Sent(state, {"trees": trees})


def _receive_trees(job: OtSetup, party: Party, state: Arrays, inbox: Inbox, _randomness: Randomness) -> Arrays:
    trees = _from_peer(job, party, inbox, "trees")
    session, first = job.session(party, state, sending=False), job._tree_messages(trees)[0]
    start = silent_ot.extend_receiver(job.setup, session, "set-up", state["base_t"], first, job.main.base)
    return {**without(state, "base_t"), "start_t": start, "trees": trees}


def _rows(keys: list[bytes] | tuple[bytes, ...]) -> Array:
    return np.frombuffer(b"".join(keys), np.uint8).reshape(len(keys), -1)


def base_pairs(state: Arrays) -> list[tuple[bytes, bytes]]:
    """Both keys of each base OT, at the party that receives COTs."""
    return [(pair[0].tobytes(), pair[1].tobytes()) for pair in state["pairs"]]


def base_keys(state: Arrays) -> list[bytes]:
    """The chosen key of each base OT, at the party that sends COTs."""
    return [key.tobytes() for key in state["keys"]]
