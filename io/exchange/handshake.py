"""The handshake: parties exchange their terms, confirm each other's, and bind the run to them.

  1. each party sends its terms to each peer, and waits until the peer's terms agree with its own
  2. each party confirms the peer's terms by their digest, and waits for the peer's confirmation of its own
  3. if a peer's terms changed in the meantime, step 2 is repeated; else all terms are stored in the run's folder

Until all terms agree nothing else is sent, so a party may send other terms again. From then on the run is bound: a run
id that comes back with other data or another configuration is refused, because it would use the same masks again. A
party that reruns a bound run needs no second handshake.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from veilmeans.io.exchange.exchange import HANDSHAKE, Exchange, Outgoing, deliver_now, get_arrays
from veilmeans.io.files.atomic_files import parse_json, write_json
from veilmeans.schemas.address import STORE_RUN, Address
from veilmeans.schemas.errors import HandshakeError, StorageError
from veilmeans.schemas.handshake_terms import Terms, first_difference
from veilmeans.schemas.message import MessageKey
from veilmeans.schemas.run_folder import RunFolder

Result = TypeVar("Result")
log = logging.getLogger(__name__)
_GRACE = 3.0  # seconds for which differing terms are read again: they may be older than the peer's correction
_PAUSE = 0.2
COMPLETE = "complete"  # announced of a run that this party has completed
_TERMS, _CONFIRMATION = 0, 1  # the shard numbers under which the two messages of a handshake are sent


def exchange_terms(
    exchange: Exchange,
    me: str,
    run: str,
    terms: Mapping[str, Terms],
    folder: RunFolder,
    timeout: float,
    check: Callable[[Mapping[str, Terms]], object] | None = None,
    grace: float | None = None,
) -> dict[str, Terms]:
    """Send each peer its part of `terms`, and return the peers' terms once all agree; then the run is bound to them.

    `check` may refuse the peers' terms before. `grace`: seconds for which differing terms are read again.
    """
    check_bound_terms(folder, me, terms)
    stored = stored_terms(folder, me, terms)
    if stored is not None:
        return stored
    log.info("%s is ready; waiting for %s, each for %g s at most", me, ", ".join(terms), timeout)
    handshake = _Handshake(exchange, me, run, timeout, _GRACE if grace is None else grace)
    received = handshake.agree(terms, check or (lambda _: None))
    for peer in terms:
        write_json(folder.terms(me, peer), terms[peer].to_dict())
    for peer in terms:
        write_json(folder.terms(peer, me), received[peer].to_dict())
    return received


def stored_terms(folder: RunFolder, me: str, peers: Mapping[str, object]) -> dict[str, Terms] | None:
    """Read the peers' terms to which the run is bound; None if it is not bound yet."""
    if not all(folder.terms(peer, me).exists() for peer in peers):
        return None
    return {peer: _read_terms(folder, peer, me) for peer in peers}


def own_binding(folder: RunFolder, me: str, peer: str) -> str:
    """Read the binding that this party announced to a peer when the run was bound."""
    return _read_terms(folder, me, peer).binding


def completion_messages(folder: RunFolder, me: str, peers: Iterable[str]) -> list[Outgoing]:
    """The terms of a bound run once more, with the mark COMPLETE: only a peer that begins the run afresh reads them."""
    if not all(folder.terms(me, peer).exists() for peer in peers):
        return []
    mine = {peer: _read_terms(folder, me, peer) for peer in peers}
    marked = {peer: replace(each, announced={**each.announced, COMPLETE: True}) for peer, each in mine.items()}
    return [terms_message(_key(folder.run, _TERMS, me, peer), each) for peer, each in marked.items()]


def refusing_messages(run: str, me: str, peers: Iterable[str], agreed: Mapping[str, object]) -> list[Outgoing]:
    """Terms with which no peer agrees: they end the peers' handshakes of this run, with the field that differs."""
    return [terms_message(_key(run, _TERMS, me, peer), Terms(agreed)) for peer in peers]


def _key(run: str, number: int, sender: str, recipient: str) -> MessageKey:
    return MessageKey(Address(run, 0, HANDSHAKE, number), sender, recipient)


def check_bound_terms(folder: RunFolder, me: str, terms: Mapping[str, Terms]) -> None:
    """Refuse a run that is bound to other terms or other data of this party."""
    for peer, mine in terms.items():
        bound = _read_terms(folder, me, peer) if folder.terms(me, peer).exists() else None
        if bound is not None and bound.bound() != json.loads(json.dumps(mine.bound())):
            what = first_difference(mine, bound, "the start of this run") or "the data or the job have changed since"
            new = "triples.store" if folder.run.startswith(STORE_RUN) else "run id"
            raise HandshakeError(f"run {folder.run!r} was begun before on other terms ({what}): choose a new {new}")


def _read_terms(folder: RunFolder, sender: str, recipient: str) -> Terms:
    file = folder.terms(sender, recipient)
    try:
        return Terms.from_dict(sender, parse_json(file.read_text()))
    except (OSError, ValueError, HandshakeError):
        raise StorageError(f"{file} cannot be read: restore it from a backup") from None


@dataclass(frozen=True)
class _Handshake:
    """One party's side of a handshake with all its peers."""

    exchange: Exchange
    me: str
    run: str
    timeout: float
    grace: float

    def agree(self, terms: Mapping[str, Terms], check: Callable[[Mapping[str, Terms]], object]) -> dict[str, Terms]:
        """Send and receive terms until each side has confirmed the other's."""
        deliver_now(self.exchange, [terms_message(self._to(peer, _TERMS), mine) for peer, mine in terms.items()])
        received, confirmed = self._receive_all(terms), False
        while not confirmed:
            check(received)
            confirmations = {peer: self._to(peer, _CONFIRMATION) for peer in received}
            deliver_now(self.exchange, [confirmation(key, received[peer]) for peer, key in confirmations.items()])
            for peer, mine in terms.items():
                self._retry_in_grace(self._from(peer, _CONFIRMATION), partial(self._read_confirmation, peer, mine))
            again = self._receive_all(terms)
            received, confirmed = again, again == received
        return received

    def _receive_all(self, terms: Mapping[str, Terms]) -> dict[str, Terms]:
        return {
            peer: self._retry_in_grace(self._from(peer, _TERMS), partial(self._read_agreeing, peer, mine))
            for peer, mine in terms.items()
        }

    def _retry_in_grace(self, key: MessageKey, read: Callable[[], Result]) -> Result:
        """Wait for the message under `key`, then read it until it is right, for the time of grace."""
        self.exchange.get(key, self.timeout)
        differing, stop = retry_if_exception_type(HandshakeError), stop_after_delay(self.grace)
        return Retrying(retry=differing, wait=wait_fixed(_PAUSE), stop=stop, reraise=True)(read)

    def _read_agreeing(self, peer: str, mine: Terms) -> Terms:
        theirs = _parse(peer, get_arrays(self.exchange, self._from(peer, _TERMS), self.timeout).get("terms"))
        difference = first_difference(mine, theirs, peer)
        if difference is not None:
            raise HandshakeError(f"{difference}: agree on one value, then start both again")
        return theirs

    def _read_confirmation(self, peer: str, mine: Terms) -> None:
        """Check that the peer has received these terms of ours, not those of an earlier attempt."""
        received = get_arrays(self.exchange, self._from(peer, _CONFIRMATION), self.timeout)
        if not np.array_equal(received.get("digest", []), _digest(mine)):
            raise HandshakeError(f"{peer} has begun this run on other terms of ours: choose a new run id")

    def _to(self, peer: str, number: int) -> MessageKey:
        return _key(self.run, number, self.me, peer)

    def _from(self, peer: str, number: int) -> MessageKey:
        return _key(self.run, number, peer, self.me)


def terms_message(key: MessageKey, terms: Terms) -> Outgoing:
    """Make the message that sends terms."""
    return Outgoing.of(key, {"terms": np.frombuffer(_encode(terms), np.uint8)})


def confirmation(key: MessageKey, received: Terms) -> Outgoing:
    """Make the message that confirms a peer's terms."""
    return Outgoing.of(key, {"digest": _digest(received)})


def _digest(terms: Terms) -> NDArray[np.uint8]:
    return np.frombuffer(hashlib.sha256(_encode(terms)).digest(), np.uint8)


def _encode(terms: Terms) -> bytes:
    return json.dumps(terms.to_dict(), sort_keys=True).encode()


def _parse(peer: str, text: NDArray[np.uint8] | None) -> Terms:
    try:
        return Terms.from_dict(peer, parse_json(b"" if text is None else text.tobytes()))
    except ValueError:
        raise HandshakeError(f"the handshake of {peer} cannot be read: does it run another veilmeans?") from None
