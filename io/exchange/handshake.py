"""The handshake: each party tells each other its terms, each confirms what it heard, and a run is bound to it.

Until all terms agree nothing else is sent, so a handshake may be put again with other terms. From then on the run is
sealed: what was said is kept in the run's folder, and a run id that comes back with other data or another
configuration is refused (it would use the same masks again). A party that starts a sealed run again goes on from there.
"""

import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from veilmeans.io.exchange.exchange import HANDSHAKE, Exchange, Outgoing, get_arrays
from veilmeans.io.storage.atomic_files import write_json
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Arrays
from veilmeans.schemas.errors import HandshakeError
from veilmeans.schemas.handshake_terms import Terms, first_difference
from veilmeans.schemas.message import MessageKey

log = logging.getLogger(__name__)
_GRACE = 3.0
"""Seconds for which differing terms are looked at again: they may be left over from before the peer's correction."""


def shake_hands(
    exchange: Exchange,
    me: str,
    run: str,
    terms: Mapping[str, Terms],
    folder: Path,
    timeout: float,
    check: Callable[[Mapping[str, Terms]], object] | None = None,
) -> dict[str, Terms]:
    """Exchange terms with each peer in `terms` (what it is told); what each of them said, once all agree.

    `check` may refuse what was heard before the run is bound to it.
    """
    check_bindings(folder, me, terms)
    known = earlier_handshake(folder, me, terms)
    if known is not None:
        return known
    log.info("%s is ready; waiting for %s, each for %g s at most", me, ", ".join(terms), timeout)
    exchange.put_all([_message(MessageKey(_where(run), me, peer), said) for peer, said in terms.items()])
    heard, confirmed = _hear(exchange, me, run, terms, timeout), False
    while not confirmed:
        if check is not None:
            check(heard)
        exchange.put_all([_confirmation(MessageKey(_where(run, 1), me, peer), said) for peer, said in heard.items()])
        for peer, said in terms.items():
            _await_confirmation(exchange, MessageKey(_where(run, 1), peer, me), said, timeout)
        again = _hear(exchange, me, run, terms, timeout)
        heard, confirmed = again, again == heard
    for peer, said in terms.items():
        _bind(folder, f"{me}-to-{peer}", said)
    for peer, said in heard.items():
        _bind(folder, f"{peer}-to-{me}", said)
    return heard


def earlier_handshake(folder: Path, me: str, terms: Mapping[str, Terms]) -> dict[str, Terms] | None:
    """What each peer said when the run was begun, if it was."""
    if not all(_binding_file(folder, f"{peer}-to-{me}").exists() for peer in terms):
        return None
    return {peer: _bound(folder, f"{peer}-to-{me}") for peer in terms}


def check_bindings(folder: Path, me: str, terms: Mapping[str, Terms]) -> None:
    """Refuse a run that was begun on other terms, or on other data."""
    for peer, said in terms.items():
        _check_binding(folder, f"{me}-to-{peer}", said)


def _check_binding(folder: Path, name: str, said: Terms) -> None:
    path = _binding_file(folder, name)
    if not path.exists():
        return
    before = _bound(folder, name)
    if before.to_dict() != json.loads(json.dumps(said.to_dict())):
        what = first_difference(said, before, "the start of this run") or "the data or the job have changed since"
        new = "triples.store" if folder.name.startswith("store-") else "run id"
        raise HandshakeError(f"run {folder.name!r} was begun before on other terms ({what}): choose a new {new}")


def _hear(exchange: Exchange, me: str, run: str, terms: Mapping[str, Terms], timeout: float) -> dict[str, Terms]:
    return {peer: _await_agreement(exchange, me, run, peer, said, timeout) for peer, said in terms.items()}


def _await_agreement(exchange: Exchange, me: str, run: str, peer: str, said: Terms, timeout: float) -> Terms:
    deadline = None
    while True:
        theirs = _parse(peer, get_arrays(exchange, MessageKey(_where(run), peer, me), timeout))
        differs = first_difference(said, theirs, peer)
        if differs is None:
            return theirs
        deadline = deadline or time.monotonic() + _GRACE
        if time.monotonic() > deadline:
            raise HandshakeError(f"{differs}: agree on one value, then start both again")
        time.sleep(0.2)


def _await_confirmation(exchange: Exchange, key: MessageKey, said: Terms, timeout: float) -> None:
    """Wait until the peer has heard these terms of ours, not those of an earlier attempt."""
    deadline = None
    while not np.array_equal(get_arrays(exchange, key, timeout).get("digest", []), _digest(said)):
        deadline = deadline or time.monotonic() + _GRACE
        if time.monotonic() > deadline:
            raise HandshakeError(f"{key.sender} has begun this run on other terms of ours: choose a new run id")
        time.sleep(0.2)


def _where(run: str, part: int = 0) -> Address:
    return Address(run, 0, HANDSHAKE, part)


def _digest(terms: Terms) -> NDArray[np.uint8]:
    text = json.dumps(terms.to_dict(), sort_keys=True).encode()
    return np.frombuffer(hashlib.sha256(text).digest(), np.uint8)


def _confirmation(key: MessageKey, heard: Terms) -> Outgoing:
    return Outgoing.of(key, {"digest": _digest(heard)})


def _message(key: MessageKey, terms: Terms) -> Outgoing:
    text = json.dumps(terms.to_dict(), sort_keys=True).encode()
    return Outgoing.of(key, {"terms": np.frombuffer(text, np.uint8)})


def _parse(peer: str, message: Arrays) -> Terms:
    try:
        return Terms.from_dict(peer, json.loads(message["terms"].tobytes()))
    except (KeyError, ValueError):
        raise HandshakeError(f"the handshake of {peer} cannot be read: does it run another veilmeans?") from None


def _binding_file(folder: Path, name: str) -> Path:
    return folder / f"bound.{name}.json"


def _bound(folder: Path, name: str) -> Terms:
    return Terms.from_dict(name, json.loads(_binding_file(folder, name).read_text()))


def _bind(folder: Path, name: str, said: Terms) -> None:
    write_json(_binding_file(folder, name), said.to_dict())
