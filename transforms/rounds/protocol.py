"""Protocols: sequences of rounds. A round is a pair of pure functions with an exchange of messages between them.

    send(party, state, randomness)           -> Sent(state, message)    compute the messages to the peers
    receive(party, state, inbox, randomness) -> state                   continue with the peers' messages

No Beam and no input or output in here: all executors run the same objects. Both halves get randomness, because a triple
is expanded again on receive and never carried through the barrier between them.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial, reduce

import numpy as np

from veilmeans.crypto import ring
from veilmeans.schemas.arrays import Array, Arrays
from veilmeans.schemas.errors import RefusedError
from veilmeans.schemas.party import Party
from veilmeans.transforms.rounds.interfaces import Randomness

Route = Callable[[int, int], tuple[int, ...]]
"""(sender, M) -> the parties it sends to in this round. Public, so every party knows which messages to expect."""


def to_nobody(_sender: int, _parties: int) -> tuple[int, ...]:
    """The route of local work: nobody sends anything."""
    return ()


def to_all(sender: int, parties: int) -> tuple[int, ...]:
    """The route on which every party sends to every other."""
    return tuple(i for i in range(parties) if i != sender)


@dataclass(frozen=True)
class Sent:
    """The result of a send: the state after it, and one `message` for all recipients, or one for each in `to`."""

    state: Arrays
    message: Arrays = field(default_factory=dict)
    to: Mapping[int, Arrays] | None = None

    def for_peer(self, peer: int) -> Arrays:
        """The message to one peer."""
        return self.message if self.to is None else self.to[peer]


@dataclass(frozen=True)
class Inbox:
    """The peers' messages of one round to this party. Shapes and types are checked against expected arrays."""

    party: Party
    messages: Mapping[int, Arrays]

    def from_peer(self, peer: int, name: str, like: Array) -> Array:
        """Return one peer's array `name`, or refuse it if it lacks the shape and type of `like`."""
        array = self.messages[peer].get(name)
        if array is None or array.shape != like.shape or array.dtype != like.dtype:
            received = "nothing" if array is None else f"{array.dtype} {array.shape}"
            expected = f"{like.dtype} {like.shape}"
            raise RefusedError(f"{self.party.names[peer]} sent {received} as {name!r}, and {expected} was expected")
        return array

    def open_sum(self, name: str, mine: ring.Ring) -> ring.Ring:
        """Σ over all parties of the array `name`; `mine` is this party's."""
        return ring.total([mine, *(self.from_peer(peer, name, mine) for peer in self.messages)])

    def open_xor(self, name: str, mine: Array) -> Array:
        """⊕ over all parties of the array `name`; `mine` is this party's."""
        return reduce(np.bitwise_xor, (self.from_peer(peer, name, mine) for peer in self.messages), mine)

    def scoped(self, scope: str) -> "Inbox":
        """Select the arrays of each message whose names begin with `scope`."""
        messages = {}
        for peer, arrays in self.messages.items():
            selected = [name for name in arrays if name.startswith(scope)]
            messages[peer] = {name.removeprefix(scope): arrays[name] for name in selected}
        return Inbox(self.party, messages)


Local = Callable[[Party, Arrays], Arrays]
"""Work on one party's own state."""
Send = Callable[[Party, Arrays, Randomness], Sent]
Receive = Callable[[Party, Arrays, Inbox, Randomness], Arrays]


@dataclass(frozen=True)
class Round:
    """One exchange of messages. `sends` describes their content in the paper's letters.

    `broadcast`: a party sends the same to all others, which compare what they have heard.
    """

    name: str
    send: Send
    receive: Receive
    sends: str
    route: Route = to_all
    broadcast: bool = True

    def recipients(self, party: Party) -> tuple[int, ...]:
        """The parties that `party` sends to."""
        return self.route(party.index, party.count)

    def senders(self, party: Party) -> tuple[int, ...]:
        """The parties that send to `party`."""
        return tuple(i for i in party.others if party.index in self.route(i, party.count))


@dataclass(frozen=True)
class Stage:
    """A round at its position in a protocol; `name` is unique there and part of every address."""

    name: str
    round: Round


@dataclass(frozen=True)
class Protocol:
    """A named sequence of rounds. `a + b` is a, then b; `a * 3` is a three times over.

    `first`: the number of its first round, where several protocols have one name and their rounds are numbered through.
    """

    name: str
    rounds: tuple[Round, ...]
    first: int = 0

    def __add__(self, other: "Protocol") -> "Protocol":
        return Protocol(f"{self.name}-{other.name}", self.rounds + other.rounds)

    def __mul__(self, times: int) -> "Protocol":
        return Protocol(f"{self.name}-x{times}", self.rounds * times)

    def __len__(self) -> int:
        return len(self.rounds)

    def after(self, work: Local) -> "Protocol":
        """Add local work before the first round's send."""
        first, *rest = self.rounds
        return Protocol(self.name, (replace(first, send=partial(_send_after, work, first.send)), *rest))

    def then(self, work: Local) -> "Protocol":
        """Add local work after the last round's receive."""
        *rest, last = self.rounds
        return Protocol(self.name, (*rest, replace(last, receive=partial(_receive_then, work, last.receive))))

    def named(self, name: str) -> "Protocol":
        """The same rounds under another name."""
        return Protocol(name, self.rounds)

    def numbered(self, first: int) -> "Protocol":
        """The same rounds, numbered from `first` on."""
        return replace(self, first=first)

    def stages(self) -> Iterator[Stage]:
        """List the rounds with their names in addresses."""
        for number, round_ in enumerate(self.rounds, self.first):
            yield Stage(f"{self.name}.{number:02d}.{round_.name}", round_)


def require(state: Arrays, name: str) -> ring.Ring:
    """Return the ring array `name` of a state; TypeError if it is of another type."""
    array = state[name]
    if array.dtype != ring.DTYPE:
        raise TypeError(f"{name!r} is {array.dtype}, not {np.dtype(ring.DTYPE)}")
    return array


def without(state: Arrays, *names: str) -> dict[str, Array]:
    """Copy the state without some of its arrays."""
    return {name: array for name, array in state.items() if name not in names}


def local_round(name: str, work: Local) -> Round:
    """Make a round in which nobody sends anything."""
    return Round(name, _send_nothing, partial(_work_locally, work), sends="nothing", route=to_nobody)


def merge_rounds(name: str, *rounds: Round) -> Round:
    """Merge independent rounds into one: they share one message, and their work touches different arrays."""
    sends = "; ".join(round_.sends for round_ in rounds)
    return Round(name, partial(_send_merged, rounds), partial(_receive_merged, rounds), sends)


def _send_after(work: Local, send: Send, party: Party, state: Arrays, randomness: Randomness) -> Sent:
    return send(party, work(party, state), randomness)


def _receive_then(
    work: Local, receive: Receive, party: Party, state: Arrays, inbox: Inbox, randomness: Randomness
) -> Arrays:
    return work(party, receive(party, state, inbox, randomness))


def _send_nothing(_party: Party, state: Arrays, _randomness: Randomness) -> Sent:
    return Sent(state)


def _work_locally(work: Local, party: Party, state: Arrays, _inbox: Inbox, _randomness: Randomness) -> Arrays:
    return work(party, state)


def _send_merged(rounds: tuple[Round, ...], party: Party, state: Arrays, randomness: Randomness) -> Sent:
    message: dict[str, Array] = {}
    for number, round_ in enumerate(rounds):
        sent = round_.send(party, state, randomness.scoped(f"{number}/"))
        state = sent.state
        message |= {f"{number}/{name}": array for name, array in sent.message.items()}
    return Sent(state, message)


def _receive_merged(
    rounds: tuple[Round, ...], party: Party, state: Arrays, inbox: Inbox, randomness: Randomness
) -> Arrays:
    for number, round_ in enumerate(rounds):
        scope = f"{number}/"
        state = round_.receive(party, state, inbox.scoped(scope), randomness.scoped(scope))
    return state
