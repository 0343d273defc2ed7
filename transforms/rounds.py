"""A protocol is a list of rounds; a round is a pair of pure functions with an exchange of messages between them.

    send(party, state, randomness)           -> Sent(state, message)    compute, and say what the peers shall get
    receive(party, state, inbox, randomness) -> state                   continue with what they sent

No Beam and no input or output in here: `bare` and `beam` executors run the same objects. Randomness is handed to both
halves, because a triple is expanded again on receive and never carried through the barrier between them.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from veilmeans.crypto import ring
from veilmeans.schemas.arrays import Array, Arrays
from veilmeans.schemas.errors import RefusedError
from veilmeans.schemas.party import Party
from veilmeans.transforms.randomness import Randomness

Route = Callable[[int, int], tuple[int, ...]]
"""(sender, M) -> the parties it sends to in this round. Public, so each knows whom to expect a message from."""


def to_all(sender: int, parties: int) -> tuple[int, ...]:
    """Every party sends to every other."""
    return tuple(i for i in range(parties) if i != sender)


@dataclass(frozen=True)
class Sent:
    """The state to go on with, and one `message` for all recipients of the route, or one for each in `to`."""

    state: Arrays
    message: Arrays = field(default_factory=dict)
    to: Mapping[int, Arrays] | None = None

    def for_peer(self, peer: int) -> Arrays:
        return self.message if self.to is None else self.to[peer]


@dataclass(frozen=True)
class Inbox:
    """What the peers sent me in this round. Sizes and types are checked against my own part."""

    party: Party
    messages: Mapping[int, Arrays]

    def from_peer(self, peer: int, name: str, like: Array) -> Array:
        """One peer's array `name`, which must have the shape and type of `like`."""
        array = self.messages[peer].get(name)
        if array is None or array.shape != like.shape or array.dtype != like.dtype:
            found = "nothing" if array is None else f"{array.dtype} {array.shape}"
            wanted = f"{like.dtype} {like.shape}"
            raise RefusedError(f"{self.party.names[peer]} sent {found} as {name!r} where {wanted} was due")
        return array

    def opened(self, name: str, mine: ring.Ring) -> ring.Ring:
        """Σ over all parties of the array `name`, mine included."""
        return ring.total([mine, *(self.from_peer(peer, name, mine) for peer in self.messages)])


Send = Callable[[Party, Arrays, Randomness], Sent]
Receive = Callable[[Party, Arrays, Inbox, Randomness], Arrays]


@dataclass(frozen=True)
class Round:
    """One exchange of messages. `sends` says in the paper's letters what crosses."""

    name: str
    send: Send
    receive: Receive
    sends: str
    route: Route = to_all

    def recipients(self, party: Party) -> tuple[int, ...]:
        return self.route(party.index, party.count)

    def senders(self, party: Party) -> tuple[int, ...]:
        return tuple(i for i in party.others if party.index in self.route(i, party.count))


@dataclass(frozen=True)
class Stage:
    """A round at its place in a protocol; `name` is unique there and part of every address."""

    name: str
    round: Round


@dataclass(frozen=True)
class Protocol:
    """A named sequence of rounds. `a + b` is a, then b; `a * 3` is a three times over."""

    name: str
    rounds: tuple[Round, ...]

    def __add__(self, other: "Protocol") -> "Protocol":
        return Protocol(f"{self.name}-{other.name}", self.rounds + other.rounds)

    def __mul__(self, times: int) -> "Protocol":
        return Protocol(f"{self.name}-x{times}", self.rounds * times)

    def __len__(self) -> int:
        return len(self.rounds)

    def named(self, name: str) -> "Protocol":
        return Protocol(name, self.rounds)

    def stages(self) -> Iterator[Stage]:
        for number, round_ in enumerate(self.rounds):
            yield Stage(f"{self.name}.{number:02d}.{round_.name}", round_)


def require(state: Arrays, name: str) -> ring.Ring:
    """The ring array `name` of a state."""
    array = state[name]
    if array.dtype != ring.DTYPE:
        raise TypeError(f"{name!r} is {array.dtype}, not {np.dtype(ring.DTYPE)}")
    return array
