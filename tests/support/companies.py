"""Companies that agree on a run by files, each in a folder of its own, by the functions of the commands."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from support.error_sentence import error_sentence
from veilmeans.crypto.certificates import Identity
from veilmeans.io.exchange.connections import load_identity
from veilmeans.pipelines.cli import agreement_commands as commands
from veilmeans.pipelines.configure.agreement.shared_terms import agreed_words
from veilmeans.pipelines.configure.agreement.signed_file import SignedFile, read_signed, sign_file
from veilmeans.schemas.config import JobConfig, load_config
from veilmeans.schemas.errors import RefusedError, VeilmeansError

ADDRESS = "payco.example:7101"


class Company:
    """A member in its own folder; every command consents."""

    def __init__(self, top: Path, name: str) -> None:
        self.name, self.folder = name, top / name
        self.folder.mkdir()
        self.config_file = self.folder / "config.yaml"

    @property
    def config(self) -> JobConfig:
        return load_config(self.config_file)

    @property
    def identity(self) -> Identity:
        return load_identity(self.config)

    @property
    def words(self) -> str:
        return agreed_words(self.config)

    def sent(self, kind: str) -> Path:
        """A file that this company has written for others."""
        return self.folder / f"{self.name}-{kind}.json"

    def invite(self, others: str, **options: Any) -> Path:
        wanted = {"name": self.name, "others": others, "clusters": 3, "rows": 12, "columns": 2, **options}
        commands.invite(ADDRESS, config=self.config_file, **wanted)
        return self.sent("invitation")

    def join(self, file: Path, **options: Any) -> Path:
        size = {"columns": 4} if self.name != "dealer" else {}
        wanted = {"address": f"{self.name}.example:7102", "yes": True, "name": self.name, **size, **options}
        commands.join(file, config=self.config_file, **wanted)
        return self.sent("reply")

    def accept(self, file: Path) -> None:
        commands.accept(file, yes=True, config=self.config_file)

    def refuse(self, file: Path) -> Path:
        commands.refuse(file, config=self.config_file)
        return self.sent("answer")

    def answer(self, file: Path) -> Path:
        self.accept(file)
        return self.sent("answer")

    def propose(self, *changes: str, **options: Any) -> Path:
        commands.propose(list(changes), config=self.config_file, **options)
        return self.sent("proposal")

    def everything(self) -> dict[str, bytes]:
        """All files of this company."""
        return {str(path): path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}


def two_companies(top: Path) -> tuple[Company, Company]:
    """payco, which has invited shop, and shop, which has joined."""
    payco, shop = Company(top, "payco"), Company(top, "shop")
    payco.accept(shop.join(payco.invite("shop")))
    return payco, shop


def several_companies(top: Path, names: Sequence[str] = ("payco", "shop", "bank"), **options: Any) -> list[Company]:
    """Companies that have agreed; the first has invited the others."""
    first, *others = companies = [Company(top, name) for name in names]
    parties = ",".join(name for name in names[1:] if name != "dealer")
    invitation = first.invite(parties, dealer="dealer" if "dealer" in names else None, **options)
    for each in others:
        first.accept(each.join(invitation, rows=None if each.name == "dealer" else 12))
    for each in others:
        each.accept(first.sent("agreement"))
    return companies


def changed_file(file: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """A copy of a file in which `change` has changed the content, and nobody has signed it again."""
    content = json.loads(file.read_text())
    change(content)
    copy = file.with_name(f"changed-{file.name}")
    copy.write_text(json.dumps(content))
    return copy


def resigned_file(file: Path, signer: Identity, **fields: Any) -> Path:
    """A copy of a file with other fields in its body, signed by anyone."""
    body = read_signed(file).body.model_copy(update=fields)
    signed: SignedFile = sign_file(body, signer)
    copy = file.with_name(f"signed-{file.name}")
    copy.write_text(signed.text())
    return copy


def refused(company: Company, call: Callable[[], object], kind: type[VeilmeansError] = RefusedError) -> str:
    """The sentence of a refusal after which all files are as they were."""
    before = company.everything()
    sentence = error_sentence(call, kind)
    assert company.everything() == before
    return sentence
