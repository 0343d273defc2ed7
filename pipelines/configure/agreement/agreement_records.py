"""The signed files that a party has made and accepted, beside its configuration: agreements/ID/KIND.json.

A record is written last, when all that follows from a file is done. So a command that was interrupted can be rerun, and
one that was completed refuses the same file a second time.
"""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from veilmeans.io.files.atomic_files import write_text
from veilmeans.pipelines.configure.agreement.signed_file import Body, SignedFile, read_signed
from veilmeans.pipelines.configure.config_advice import AGREEMENTS
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import RefusedError

DEFAULT_CONFIG = Path("config.yaml")
_CURRENT = "invitation"
_NEEDS_CONFIG = ("offline", "train", "results", "inspect")
B = TypeVar("B", bound=Body)


class Records:
    """A party's records of one invitation or proposal, by the id that the file has (32 hexadecimal digits)."""

    def __init__(self, config_file: Path, identifier: str) -> None:
        self.folder = config_file.parent / AGREEMENTS / identifier

    def path(self, kind: str, sender: str | None = None) -> Path:
        """The file of a record; replies and answers have one for each sender."""
        return self.folder / (f"{kind}.json" if sender is None else f"{kind}-{sender}.json")

    def has(self, kind: str, sender: str | None = None) -> bool:
        """True if there is such a record."""
        return self.path(kind, sender).exists()

    def read(self, kind: type[B], sender: str | None = None) -> tuple[SignedFile, B]:
        """Read a record that this party wrote."""
        file = read_signed(self.path(kind.__name__.lower(), sender))
        if not isinstance(file.body, kind):
            raise RefusedError(f"{file.name} is not what this party wrote there: it was damaged")
        return file, file.body

    def write(self, file: SignedFile, sender: str | None = None) -> None:
        """Keep a file."""
        write_text(self.path(file.kind, sender), file.text())

    def begin(self, file: SignedFile) -> None:
        """Note that the changes of a file are being made, so that an interrupted command can be rerun."""
        write_text(self.folder / f"begun-{file.kind}", file.digest + "\n")

    def begun(self, file: SignedFile) -> bool:
        """True if this file was checked, and its changes begun."""
        try:
            return (self.folder / f"begun-{file.kind}").read_text().strip() == file.digest
        except OSError:
            return False

    def refuse_second(self, name: str, kind: str, sender: str | None = None) -> None:
        """Refuse a file that was accepted before, or another of the same sender for the same purpose."""
        if self.has(kind, sender):
            who = "our" if sender is None else f"{sender}'s"
            raise RefusedError(
                f"{name} was used already: {who} {kind} is kept in {self.path(kind, sender)}, and a file counts once; "
                "nothing is changed"
            )


def current_invitation(config_file: Path) -> str | None:
    """The id of the invitation that this party made last; replies to earlier ones are refused."""
    try:
        return (config_file.parent / AGREEMENTS / _CURRENT).read_text().strip()
    except OSError:
        return None


def set_current_invitation(config_file: Path, identifier: str) -> None:
    """Let replies to this invitation count, and to no earlier one."""
    write_text(config_file.parent / AGREEMENTS / _CURRENT, identifier + "\n")


def outgoing_file(config_file: Path, file: SignedFile) -> Path:
    """The file to send to the others, beside the configuration."""
    return config_file.with_name(f"{file.body.sender}-{file.kind}.json")


def command(words: str, config_file: Path, *files: Path | str) -> str:
    """A command line for this party, to be copied; --config is left out where it is the default."""
    own = (
        [] if config_file == DEFAULT_CONFIG and not words.startswith(_NEEDS_CONFIG) else ["--config", str(config_file)]
    )
    return " ".join(["veilmeans", words, *(shlex.quote(str(each)) for each in (*files, *own))])


def run_commands(config_file: Path, config: JobConfig) -> list[str]:
    """The commands that lead from an agreement to a result."""
    lines = []
    if config.provider == "dealer":
        lines.append(f"  {command('offline', config_file)}   # all members at the same time: make the triple store")
    if config.party in config.parties:
        rows = shlex.quote(str(config_file.with_name("clusters.csv")))
        lines += [
            f"  {command('train', config_file)}   # the parties at the same time",
            f"  {command('results', config_file)} --csv {rows}   # clusters, and each row's",
        ]
    return lines


def listed(names: Sequence[str]) -> str:
    """Names as a text."""
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)
