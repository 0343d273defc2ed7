"""Set-up of oblivious transfers between all pairs of parties: once for a store, in five rounds on the bare executor.

  nonce     each sends a contribution of its own; the session's nonce is the hash of all
  points    base OTs, in both directions: A at the one that will receive COTs …
  choices   … and B_i at the one that will send them, whose Δ are the choice bits
  columns   IKNP: the COTs of the set-up round (with provider `ot`)
  trees     the messages of the set-up round and of the rounds that make the base COTs of every place

State before: `seed` (32 bytes, secret) and `contribution` (32 bytes, drawn for this store and kept with it), so that a
rerun sends the same and a party that lost its folder has another nonce. After: `nonce`, `pairs` and `keys` (of the base
OTs) and, with provider `ot`, `start_q`, `start_t` and the peers' `trees`, from which `base_cots` makes the base COTs of
each place: one array for every peer, in the parties' order. A party's COTs of all peers have the same choice bits.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from veilmeans.crypto.ot import base_ot, iknp, silent_ot
from veilmeans.crypto.ot.blocks import Blocks, make_delta
from veilmeans.crypto.ot.cot_supply import SilentSender, Supply, silent_receiver, silent_rounds
from veilmeans.crypto.ot.ot_session import NONCE_SIZE, OtSession, join_nonces
from veilmeans.crypto.ot.silent_ot import MAIN, SETUP, LpnParameters
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Array, Arrays, ArraySpec, Spec
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
            Round(
                "points",
                partial(_send_points, self),
                partial(_receive_points, self),
                "A of the base OTs",
                broadcast=False,
            ),
            Round(
                "choices",
                partial(_send_choices, self),
                partial(_receive_choices, self),
                "B of the base OTs",
                broadcast=False,
            ),
        ]
        if self.provider == "ot":
            rounds += [
                Round(
                    "columns",
                    partial(_send_columns, self),
                    partial(_receive_columns, self),
                    "u of IKNP",
                    broadcast=False,
                ),
                Round(
                    "trees",
                    partial(_send_trees, self),
                    partial(_receive_trees, self),
                    "sums of half trees",
                    broadcast=False,
                ),
            ]
        return Protocol("ot-setup", tuple(rounds))

    def session(
        self, party: Party, state: Arrays, peer: int, sending: bool, address: Address | None = None
    ) -> OtSession:
        """One direction of the session with a peer: this party sends COTs, or receives them."""
        sender, receiver = (party.index, peer) if sending else (peer, party.index)
        where = address or Address(self.store, 0, "ot-setup", 0)
        return OtSession(state["seed"].tobytes(), state["nonce"].tobytes(), sender, receiver, where)

    def delta(self, party: Party, state: Arrays, peer: int) -> Blocks:
        """This party's Δ towards a peer: one for the store."""
        return make_delta(self.session(party, state, peer, sending=True).secret("delta"))

    def base_cots(self, party: Party, state: Arrays) -> Iterator[tuple[Blocks, Blocks]]:
        """Make the base COTs of each place in turn: those that this party sends and those that it receives, by peer."""
        pairs = [self._place_supplies(party, state, peer) for peer in party.others]
        for _ in range(self.places):
            taken = [(made.take(self.main.base), received.take(self.main.base)) for made, received in pairs]
            yield np.stack([q for q, _ in taken]), np.stack([t for _, t in taken])

    def _place_supplies(self, party: Party, state: Arrays, peer: int) -> tuple[Supply, Supply]:
        session = self.session(party, state, peer, sending=False, address=self._places_address)
        messages = self._tree_messages(of_peer(party, state["trees"], peer))[1:]
        start = of_peer(party, state["start_t"], peer)
        receiving = silent_receiver(self.main, session, start, messages, self.places * self.main.base)
        return self.place_sender(party, state, peer).supply(), receiving

    def place_sender(self, party: Party, state: Arrays, peer: int) -> SilentSender:
        """The sender of the rounds that make the base COTs of all places."""
        session = self.session(party, state, peer, sending=True, address=self._places_address)
        start, count = of_peer(party, state["start_q"], peer), self.places * self.main.base
        return SilentSender(self.main, session, self.delta(party, state, peer), start, count)

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
        """The arrays of each party's messages to each peer, by round."""
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


def of_peer(party: Party, arrays: Array, peer: int) -> Array:
    """The array for one peer, of those of all peers."""
    found: Array = arrays[party.others.index(peer)]
    return found


def _from_peers(job: OtSetup, party: Party, inbox: Inbox, name: str) -> Array:
    """The one array of the round `name` from each peer."""
    (spec,) = job.message_specs()[name]
    like = np.empty(spec.shape, spec.dtype)
    return np.stack([inbox.from_peer(peer, spec.name, like) for peer in party.others])


def _send_nonce(_job: OtSetup, _party: Party, state: Arrays, _randomness: Randomness) -> Sent:
    return Sent(state, {"contribution": state["contribution"]})


def _receive_nonce(job: OtSetup, party: Party, state: Arrays, inbox: Inbox, _randomness: Randomness) -> Arrays:
    contributions = [each.tobytes() for each in _from_peers(job, party, inbox, "nonce")]
    contributions.insert(party.index, state["contribution"].tobytes())
    return {**state, "nonce": np.frombuffer(join_nonces(contributions), np.uint8)}


def _send_points(job: OtSetup, party: Party, state: Arrays, _randomness: Randomness) -> Sent:
    points = {peer: base_ot.sender_point(job.session(party, state, peer, sending=False)) for peer in party.others}
    return Sent(state, to={peer: {"a": np.frombuffer(point, np.uint8)} for peer, point in points.items()})


def _receive_points(job: OtSetup, party: Party, state: Arrays, inbox: Inbox, _randomness: Randomness) -> Arrays:
    return {**state, "a": _from_peers(job, party, inbox, "points")}


def _send_choices(job: OtSetup, party: Party, state: Arrays, _randomness: Randomness) -> Sent:
    keys, messages = [], {}
    for peer, a_point in zip(party.others, state["a"], strict=True):
        session, chosen = job.session(party, state, peer, sending=True), iknp.delta_bits(job.delta(party, state, peer))
        messages[peer] = {"b": _rows(base_ot.receiver_points(session, chosen, a_point.tobytes()))}
        keys.append(_rows(base_ot.receiver_keys(session, chosen, a_point.tobytes())))
    return Sent({**without(state, "a"), "keys": np.stack(keys)}, to=messages)


def _receive_choices(job: OtSetup, party: Party, state: Arrays, inbox: Inbox, _randomness: Randomness) -> Arrays:
    pairs = []
    for peer, points in zip(party.others, _from_peers(job, party, inbox, "choices"), strict=True):
        session = job.session(party, state, peer, sending=False)
        keys = base_ot.sender_keys(session, [point.tobytes() for point in points])
        pairs.append(np.stack([_rows(pair) for pair in keys]))
    return {**state, "pairs": np.stack(pairs)}


def _send_columns(job: OtSetup, party: Party, state: Arrays, _randomness: Randomness) -> Sent:
    cots, messages = [], {}
    for peer in party.others:
        session, pairs = job.session(party, state, peer, sending=False), base_pairs(party, state, peer)
        blocks, message = iknp.extend_receiver(session, "set-up", pairs, job.setup.base)
        cots.append(blocks)
        messages[peer] = {"u": message}
    return Sent({**state, "base_t": np.stack(cots)}, to=messages)


def _receive_columns(job: OtSetup, party: Party, state: Arrays, inbox: Inbox, _randomness: Randomness) -> Arrays:
    cots = []
    for peer, message in zip(party.others, _from_peers(job, party, inbox, "columns"), strict=True):
        session, delta = job.session(party, state, peer, sending=True), job.delta(party, state, peer)
        keys = base_keys(party, state, peer)
        cots.append(iknp.extend_sender(session, "set-up", keys, delta, message, job.setup.base))
    return {**state, "base_q": np.stack(cots)}


def _send_trees(job: OtSetup, party: Party, state: Arrays, _randomness: Randomness) -> Sent:
    starts, first = [], {}
    for peer, base in zip(party.others, state["base_q"], strict=True):
        session, delta = job.session(party, state, peer, sending=True), job.delta(party, state, peer)
        start, first[peer] = silent_ot.extend_sender(job.setup, session, "set-up", delta, base, job.main.base)
        starts.append(start)
    state = {**without(state, "base_q"), "start_q": np.stack(starts)}
    return Sent(state, to={peer: {"trees": _trees(job, party, state, peer, first[peer])} for peer in party.others})


def _trees(job: OtSetup, party: Party, state: Arrays, peer: int, first: Array) -> Array:
    """The messages of the set-up round and of all rounds for the places, as one array of blocks."""
    sender = job.place_sender(party, state, peer)
    made = sender.supply()
    for _ in range(job.places):
        made.take(job.main.base)
    return np.concatenate([message.reshape(-1, 2) for message in (first, *sender.messages)])


def _receive_trees(job: OtSetup, party: Party, state: Arrays, inbox: Inbox, _randomness: Randomness) -> Arrays:
    trees, starts = _from_peers(job, party, inbox, "trees"), []
    for peer, message, base in zip(party.others, trees, state["base_t"], strict=True):
        session, first = job.session(party, state, peer, sending=False), job._tree_messages(message)[0]
        starts.append(silent_ot.extend_receiver(job.setup, session, "set-up", base, first, job.main.base))
    return {**without(state, "base_t"), "start_t": np.stack(starts), "trees": trees}


def _rows(keys: list[bytes] | tuple[bytes, ...]) -> Array:
    return np.frombuffer(b"".join(keys), np.uint8).reshape(len(keys), -1)


def base_pairs(party: Party, state: Arrays, peer: int) -> list[tuple[bytes, bytes]]:
    """Both keys of each base OT, at the party that receives COTs."""
    return [(pair[0].tobytes(), pair[1].tobytes()) for pair in of_peer(party, state["pairs"], peer)]


def base_keys(party: Party, state: Arrays, peer: int) -> list[bytes]:
    """The chosen key of each base OT, at the party that sends COTs."""
    return [key.tobytes() for key in of_peer(party, state["keys"], peer)]
