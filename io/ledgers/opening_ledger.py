"""The ledger of what was opened of one party's data: by its runs, predictions and reveals, one file for each opening.

  openings/DIGEST/RUN.NAME.json    what was opened, to whom, when; NAME is that of the policy, or `scale`

Many openings of nearly the same rows reveal what no single one does, so the parties may agree on a limit
(`openings.limit`): a party refuses, before anything is opened, an opening beyond it. DIGEST is of the rows' content
under a key of the party. A prediction counts for the new rows, and for those that its model was trained with. An
opening that is repeated after a failure counts once: it opens the same.
"""

import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from veilmeans.crypto import prg
from veilmeans.io.files.party_files import LOCAL
from veilmeans.io.files.secret_files import read_secret
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import RefusedError, StorageError

SCALE = "scale"  # the name of the opening of aggregated statistics


@dataclass(frozen=True)
class Opening:
    """One opening of the data: result -> who learnt it."""

    run: str
    command: str
    opened: dict[str, list[str]]
    at: str


@dataclass(frozen=True)
class OpeningLedger:
    """All openings of the data with one digest."""

    folder: Path
    data: str

    @classmethod
    def of(cls, config: JobConfig, data: str) -> "OpeningLedger":
        return cls(config.ledger_folder.openings(data), data)

    def openings(self) -> list[Opening]:
        """Read all openings, in the order of time."""
        return sorted((_read(file) for file in self.folder.glob("*.json")), key=lambda each: (each.at, each.run))

    def lines(self, limit: int | None) -> list[str]:
        """Describe all openings, a line for each after one for the data."""
        openings = self.openings()
        most = "" if limit is None else f" of at most {limit:,}"
        lines = [f"data {self.data}: {len(openings):,} openings{most}"]
        for each in openings:
            opened = "; ".join(f"{result} to {', '.join(who)}" for result, who in each.opened.items())
            lines.append(f"  {each.at}  {each.run} ({each.command}): {opened}")
        return lines

    def check(self, openings: Sequence[tuple[str, str]], limit: int | None) -> None:
        """Refuse openings, each of a run by its name, that would be more than the parties agreed on."""
        new = [opening for opening in openings if not self._file(*opening).exists()]
        known = len(self.openings())
        if new and limit is not None and known + len(new) > limit:
            raise RefusedError(
                f"results of the data of run {new[0][0]!r} were opened {known:,} times, now {len(new):,} more, and "
                f"openings.limit is {limit:,}: `veilmeans openings` lists them; all must agree on a higher limit"
            )

    def record(self, run: str, name: str, command: str, opened: Mapping[str, Sequence[str]]) -> None:
        """Write an opening down, before it happens."""
        if not self._file(run, name).exists():
            to = {result: list(who) for result, who in opened.items() if who}
            opening = Opening(run, command, to, datetime.now(UTC).isoformat(timespec="seconds"))
            LOCAL.write(self._file(run, name), [json.dumps(asdict(opening)).encode()], durable=True)

    def _file(self, run: str, name: str) -> Path:
        return self.folder / f"{run}.{name}.json"


def data_digest(config: JobConfig, content: str) -> str:
    """A digest of the rows' content under a key of this party."""
    key = prg.derive(read_secret(config.seed), "ledger of openings")
    return hmac.digest(key, content.encode(), "sha256").hex()[:32]


def all_ledgers(config: JobConfig) -> list[OpeningLedger]:
    """The ledgers of all data of which something was opened."""
    folders = sorted(config.ledger_folder.all_openings.glob("*"))
    return [OpeningLedger(folder, folder.name) for folder in folders if folder.is_dir()]


def _read(file: Path) -> Opening:
    try:
        return Opening(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError):
        raise StorageError(f"{file} cannot be read: restore it, or count that opening yourself") from None
