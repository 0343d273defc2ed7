"""A second ledger of a triple store's claims, outside the folder that is backed up with the store.

A store that comes back from a backup lacks the claims of later runs, and would serve their masks again. This ledger is
begun with the store and has every claim, too, and for each claim the peers that have confirmed theirs:

  stores/STORE-IDENTITY/begun          the ledger exists
  stores/STORE-IDENTITY/7.json         number 7 was claimed: the run and its binding
  stores/STORE-IDENTITY/7.shop.heard   shop has confirmed that it has claimed number 7
  stores/STORE-IDENTITY/unusable       a check has found that the store is wrong, and how

A store is refused if its ledger is missing or has a claim that the store lacks. A claim is written to the store first:
after a failure between the two the store knows more, and the ledger gets it when the store is used next. What peers
have confirmed is compared when a number is claimed (`session.triple_claim`): then a party whose store and ledger are
both old is refused, too.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from veilmeans.io.files.party_files import LOCAL
from veilmeans.io.storage.triple_store import TripleStore
from veilmeans.schemas.errors import StorageError
from veilmeans.schemas.run_folder import LedgerFolder

_REMEDY = "make a new triple store, under a new triples.store, at all parties"


@dataclass(frozen=True)
class ClaimLedger:
    """The ledger of one triple store, at one party."""

    folder: Path
    store: TripleStore

    @classmethod
    def of(cls, ledgers: LedgerFolder, store: TripleStore) -> "ClaimLedger":
        return cls(ledgers.store(store.manifest.store, store.identity), store)

    def begin(self) -> None:
        """Begin the ledger with its store, before the store can be used."""
        if not (self.folder / "begun").exists():
            self._write("begun", "")

    def check(self) -> None:
        """Refuse a store without a ledger, or one that lacks a claim of its ledger; note claims that are only there."""
        name = self.store.manifest.store
        if not (self.folder / "begun").exists():
            raise StorageError(
                f"the triple store {name!r} has no ledger in {self.folder}, so it may come from a backup, and its "
                f"masks may have been used: {_REMEDY} (or set triples.ledger to where its ledger is)"
            )
        if (self.folder / "unusable").exists():
            found = (self.folder / "unusable").read_text()
            raise StorageError(f"the triple store {name!r} must not be used, because {found}: {_REMEDY}")
        claims, noted = self.store.claims(), self._numbers(".json")
        lost = sorted(noted - set(claims))
        if lost:
            raise StorageError(
                f"the triple store {name!r} comes from a backup: {self.folder} knows that number {lost[-1]} was used, "
                f"and the store does not, so masks would be used twice: {_REMEDY}"
            )
        for number in sorted(set(claims) - noted):
            self._write(f"{number}.json", json.dumps(claims[number]))

    def condemn(self, reason: str) -> None:
        """Refuse the store from now on."""
        self._write("unusable", reason)

    def confirm(self, peer: str, number: int) -> None:
        """Note that a peer has claimed a number."""
        self._write(f"{number}.{peer}.heard", "")

    def confirmed(self, peer: str, number: int) -> bool:
        """True if a peer has confirmed that it claimed a number."""
        return number in self._numbers(f".{peer}.heard")

    def next_of(self, peer: str) -> int:
        """The lowest number above all that a peer has confirmed."""
        return max(self._numbers(f".{peer}.heard"), default=-1) + 1

    def _numbers(self, ending: str) -> set[int]:
        names = [file.name.removesuffix(ending) for file in self.folder.glob(f"*{ending}")]
        return {int(name) for name in names if name.isascii() and name.isdigit()}

    def _write(self, name: str, text: str) -> None:
        LOCAL.write(self.folder / name, [text.encode()], durable=True)
