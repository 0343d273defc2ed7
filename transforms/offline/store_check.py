"""Check of spare numbers of a triple store: all shares of their correlations are opened, and all relations verified.

  1. commit to a nonce; then open it: the nonces of all parties draw which numbers are checked, after the store is made
  2. claim these numbers: no run ever uses their masks
  3. commit to every share of them; then open it, and verify every relation (`crypto.correlations`)

Nobody chooses a number or a share after it has seen those of others. Only correlations are opened: no seed, no Δ, no
key. Those of one number say nothing about another's, whose seeds, OTs and ciphertexts have addresses of their own.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from veilmeans.crypto import prg
from veilmeans.crypto.correlations import CorrelationPart
from veilmeans.io.exchange.exchange import Exchange, Outgoing, deliver_now, get_arrays
from veilmeans.io.files.atomic_files import parse_json, write_json
from veilmeans.io.files.secret_files import read_secret
from veilmeans.io.ledgers.claim_ledger import ClaimLedger
from veilmeans.io.storage.triple_store import StoreRun, TripleStore
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Array, Arrays
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import RefusedError, StorageError
from veilmeans.schemas.message import MessageKey
from veilmeans.transforms.offline.traced_job import Needs, StoreJobs, StoreShard
from veilmeans.transforms.rounds.addressed_randomness import AddressedRandomness
from veilmeans.transforms.rounds.interfaces import CorrelationNeed

_DRAW, _REVEAL, _CLAIMED, _COMMIT = "check.draw", "check.reveal", "check.claimed", "check.commit"
_DIGEST = hashlib.sha256().digest_size


@dataclass(frozen=True)
class PlacedPart:
    """A part of a correlation at one place of a store."""

    stage: str
    need: CorrelationNeed
    part: CorrelationPart

    @property
    def like(self) -> Array:
        """An array in the shape and type of a share."""
        return np.zeros(self.part.shape, self.part.dtype)


def parts_of(needs: Needs) -> list[PlacedPart]:
    """List the parts of all correlations of a place, in one order for all parties."""
    return [
        PlacedPart(stage, need, part)
        for stage, stage_needs in needs.items()
        for need in stage_needs
        for part in (*need.kind.uniform_parts(), *need.kind.determined_parts())
    ]


def share_of(store: TripleStore, party: int, number: int, where: Address, placed: PlacedPart) -> Array:
    """Read or expand a party's share, as a run with this number would."""
    address = replace(where, stage=placed.stage)
    randomness = AddressedRandomness(party, b"", StoreRun(store, number), address)
    return randomness.scoped(placed.need.scope).correlated(placed.need.kind, placed.part.name)


def wrong_correlations(parts: Sequence[PlacedPart], shares: Sequence[Mapping[int, Array]]) -> Iterator[PlacedPart]:
    """Yield the parts whose values are not what their correlations say; `shares` has those of each part's holders."""
    values: dict[tuple[str, CorrelationNeed], dict[str, Array]] = {}
    for placed, of_holders in zip(parts, shares, strict=True):
        value = placed.part.reconstruct([of_holders[holder] for holder in placed.part.holders])
        values.setdefault((placed.stage, placed.need), {})[placed.part.name] = value
    for placed in parts:
        known = values[placed.stage, placed.need]
        if placed.part in placed.need.kind.determined_parts():
            expected = placed.need.kind.determine(known)[placed.part.name]
            if not np.array_equal(expected, known[placed.part.name]):
                yield placed


# commitments
def commitment_to(nonce: Array, arrays: Sequence[Array]) -> Array:
    """SHA-256 of a nonce and of arrays whose shapes and types are public."""
    digest = hashlib.sha256(b"veilmeans check of a store " + nonce.tobytes())
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return np.frombuffer(digest.digest(), np.uint8)


def draw_numbers(nonces: Sequence[Array], spare: Sequence[int], count: int, run: str) -> list[int]:
    """Draw `count` of the spare numbers by the nonces of all parties, in the parties' order."""
    joint = hashlib.sha256(b"veilmeans numbers to check " + b"".join(nonce.tobytes() for nonce in nonces)).digest()
    order: NDArray[np.uint64] = prg.uniform(joint, Address(run, 0, "numbers", 0), "order", (len(spare),))
    return sorted(spare[i] for i in np.argsort(order, kind="stable")[:count])


def free_numbers(config: JobConfig, store: TripleStore) -> list[int]:
    """The numbers that were spare when a check began, or are, if it has not."""
    file = config.run_folder.check
    free: list[int] = parse_json(file.read_text())["free"] if file.exists() else store.spare_numbers()
    return free


def require_spare(store: TripleStore, spare: int, count: int) -> None:
    """Refuse a check of more numbers than there are."""
    if count > spare:
        raise StorageError(
            f"the store {store.manifest.store!r} has {spare:,} spare numbers, and {count:,} were to be checked: make a "
            "store for more runs (triples.runs), or check fewer"
        )


@dataclass
class StoreCheck:
    """One check of a store at a party; `config` has the check's own run name."""

    exchange: Exchange
    config: JobConfig
    store: TripleStore
    jobs: StoreJobs

    @cached_property
    def _seed(self) -> bytes:
        """The seed of this party's nonces: the same in a rerun, so that nobody draws twice."""
        return prg.derive(read_secret(self.config.seed), f"{self.config.run} of {self.store.identity}")

    def choose(self, count: int) -> list[int]:
        """Draw the numbers to check with the other parties, and claim them at all of them."""
        me, nonce = self.config.party, prg.uniform(self._seed, self._at(_DRAW), "nonce", (4,))
        free = np.array(self._free_at_first(), np.uint64)
        drawn = self._exchanged(_DRAW, {"commitment": commitment_to(nonce, [free]), "free": free})
        revealed = self._exchanged(_REVEAL, {"nonce": nonce})
        spare, nonces = set(free.tolist()), {me: nonce}
        for peer in self.config.peers:
            commitment = _expect(peer, drawn[peer], "commitment", np.zeros(_DIGEST, np.uint8))
            theirs = drawn[peer].get("free")
            if theirs is None or theirs.ndim != 1 or theirs.dtype != np.uint64:
                raise RefusedError(f"{peer} did not say which numbers of the store are free")
            nonces[peer] = _expect(peer, revealed[peer], "nonce", nonce)
            if not np.array_equal(commitment, commitment_to(nonces[peer], [theirs])):
                raise RefusedError(f"{peer} opened another nonce than the one that it had committed to")
            spare &= set(theirs.tolist())
        require_spare(self.store, len(spare), count)
        numbers = draw_numbers([nonces[party] for party in self.config.parties], sorted(spare), count, self.config.run)
        for number in {*numbers, *(set(free.tolist()) - spare)}:  # what a peer excludes is never used, either
            self.store.check_number(number, self.config.run)
        ClaimLedger.of(self.config.ledger_folder, self.store).check()
        claimed = np.array(numbers, np.uint64)
        for peer, heard in self._exchanged(_CLAIMED, {"numbers": claimed}).items():
            if not np.array_equal(_expect(peer, heard, "numbers", claimed), claimed):
                raise RefusedError(f"{peer} has claimed other numbers of the store to be checked")
        return numbers

    def find_wrong(self, numbers: Sequence[int]) -> str | None:
        """Open all correlations of these numbers, and say what is wrong with the first that is."""
        committed: dict[tuple[str, int], Array] = {}
        for number in numbers:
            mine = np.array([self._commitment(place) for place in self._places(number)])
            for peer, heard in self._exchanged(_COMMIT, {"commitments": mine}, number).items():
                committed[peer, number] = _expect(peer, heard, "commitments", mine)
        found = None
        for number in numbers:
            for i, place in enumerate(self._places(number)):
                wrong = self._check_place(place, {peer: committed[peer, number][i] for peer in self.config.peers})
                found = found or wrong
        return found

    def _places(self, number: int) -> list[StoreShard]:
        """The places of a run's number, which in a sweep has several numbers of the store."""
        each = len(self.jobs.numbers(1))
        return [
            (part, iteration, shard)
            for part in range(number * each, (number + 1) * each)
            for _, iteration, shard in self.jobs.of(part).places(1, self.store.manifest.iterations)
        ]

    def _parts(self, place: StoreShard) -> list[PlacedPart]:
        number, iteration, shard = place
        return parts_of(self.jobs.of(number).needs(shard, iteration))

    def _opening_address(self, place: StoreShard, part: int = 0) -> Address:
        number, iteration, shard = place
        return Address(self.config.run, iteration, f"check.{number}.{part}", shard)

    def _shares(self, place: StoreShard) -> dict[int, Array]:
        """This party's shares at a place, by the numbers of the parts."""
        number, iteration, shard = place
        me, where = self.config.me.index, Address("", iteration, "", shard)
        held = [(i, each) for i, each in enumerate(self._parts(place)) if me in each.part.holders]
        return {i: share_of(self.store, me, number, where, each) for i, each in held}

    def _nonce(self, place: StoreShard) -> Array:
        return prg.uniform(self._seed, self._opening_address(place), "nonce", (4,))

    def _commitment(self, place: StoreShard) -> Array:
        return commitment_to(self._nonce(place), list(self._shares(place).values()))

    def _check_place(self, place: StoreShard, committed: Mapping[str, Array]) -> str | None:
        """Open the correlations of a place, and say which is wrong, if one is."""
        parts, mine, nonce = self._parts(place), self._shares(place), self._nonce(place)
        messages = [
            Outgoing.of(
                MessageKey(self._opening_address(place, i), self.config.party, peer), {"share": share, "nonce": nonce}
            )
            for i, share in mine.items()
            for peer in self.config.peers
        ]
        self.exchange.put_all(messages)
        shares: list[dict[int, Array]] = [{} for _ in parts]
        for i, share in mine.items():
            shares[i][self.config.me.index] = share
        for peer in self.config.peers:
            party = self.config.parties.index(peer)
            held = [(i, each) for i, each in enumerate(parts) if party in each.part.holders]
            heard = {i: self._opened(peer, place, i, each) for i, each in held}
            opened = [share for share, _ in heard.values()]
            theirs = next((nonce for _, nonce in heard.values()), np.zeros(4, np.uint64))
            if heard and not np.array_equal(commitment_to(theirs, opened), committed[peer]):
                raise RefusedError(f"{peer} opened other shares of number {place[0]} than it had committed to")
            for i, (share, _) in heard.items():
                shares[i][party] = share
        wrong = next(wrong_correlations(parts, shares), None)
        return None if wrong is None else self._sentence(place, wrong)

    def _opened(self, peer: str, place: StoreShard, i: int, placed: PlacedPart) -> tuple[Array, Array]:
        key = MessageKey(self._opening_address(place, i), peer, self.config.party)
        heard = get_arrays(self.exchange, key, self.config.exchange.timeout_s)
        return _expect(peer, heard, "share", placed.like), _expect(peer, heard, "nonce", np.zeros(4, np.uint64))

    def _sentence(self, place: StoreShard, wrong: PlacedPart) -> str:
        number, iteration, shard = place
        peers, kind = " or ".join(self.config.peers), wrong.need.kind.name
        dealt = self.store.manifest.provider == "dealer"
        who = "the dealer has dealt it wrong" if dealt else f"{peers} made it wrong with us"
        return (
            f"a check found a wrong correlation of the kind {kind} ({wrong.part.name}; number {number}, iteration "
            f"{iteration}, shard {shard}, {wrong.stage}): {who}, or {peers} opened other shares than it has"
        )

    def _free_at_first(self) -> list[int]:
        """The numbers that were spare here when the check began: a rerun says the same."""
        free = free_numbers(self.config, self.store)
        write_json(self.config.run_folder.check, {"free": free})
        return free

    def _at(self, stage: str, number: int = 0) -> Address:
        return Address(self.config.run, 0, stage, number)

    def _exchanged(self, stage: str, sent: Arrays, number: int = 0) -> dict[str, Arrays]:
        """Send the same to all peers, and wait for theirs."""
        where, me = self._at(stage, number), self.config.party
        deliver_now(self.exchange, [Outgoing.of(MessageKey(where, me, peer), sent) for peer in self.config.peers])
        timeout = self.config.exchange.timeout_s
        return {peer: get_arrays(self.exchange, MessageKey(where, peer, me), timeout) for peer in self.config.peers}


def _expect(peer: str, heard: Arrays, name: str, like: Array) -> Array:
    """Return an array that a peer sent; refuse one of another shape or type."""
    found = heard.get(name)
    if found is None or found.shape != like.shape or found.dtype != like.dtype:
        raise RefusedError(f"{peer} did not send {name} as the check of the store has it")
    return found
