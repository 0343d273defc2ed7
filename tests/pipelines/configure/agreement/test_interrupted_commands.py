"""A command that stops before any of its writes can be rerun, and leads to the same agreement."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.companies import Company, several_companies, two_companies
from veilmeans.io.files import atomic_files
from veilmeans.pipelines.configure.party_keys import make_keys
from veilmeans.schemas.errors import StorageError

Command = Callable[[], object]


class Writes:
    """Writes of files, of which one fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: int | None = None
        real = atomic_files.atomic_write

        @contextmanager
        def counted(path: Path) -> Iterator[Path]:
            if self.left == 0:
                raise StorageError("the disk is full")
            self.left = None if self.left is None else self.left - 1
            with real(path) as part:
                yield part

        monkeypatch.setattr(atomic_files, "atomic_write", counted)

    def interrupt_everywhere(self, command: Command) -> None:
        """Run a command that fails at its first write, then at its second, …, until it succeeds."""
        for number in range(30):
            self.left = number
            try:
                command()
            except StorageError:
                continue
            finally:
                self.left = None
            assert number > 1
            return
        raise AssertionError("the command never succeeds")


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> Writes:
    return Writes(monkeypatch)


def test_invitation_reply_and_agreement(tmp_path: Path, writes: Writes) -> None:
    payco, shop, bank = (Company(tmp_path, name) for name in ("payco", "shop", "bank"))
    writes.interrupt_everywhere(lambda: payco.invite("shop,bank"))
    for each in (shop, bank):
        writes.interrupt_everywhere(lambda each=each: each.join(payco.sent("invitation")))
        writes.interrupt_everywhere(lambda each=each: payco.accept(each.sent("reply")))
    for each in (shop, bank):
        writes.interrupt_everywhere(lambda each=each: each.accept(payco.sent("agreement")))
    assert payco.words == shop.words == bank.words


@pytest.mark.parametrize("renews", [False, True])
def test_a_proposal_between_two(tmp_path: Path, writes: Writes, renews: bool) -> None:
    payco, shop = two_companies(tmp_path)
    before = payco.words
    make_keys("payco", payco.folder / "keys-2", 9)
    keys = payco.folder / "keys-2" if renews else None
    writes.interrupt_everywhere(lambda: payco.propose("kmeans.clusters=4", keys=keys))
    writes.interrupt_everywhere(lambda: shop.accept(payco.sent("proposal")))
    writes.interrupt_everywhere(lambda: payco.accept(shop.sent("answer")))
    assert payco.words == shop.words != before


@pytest.mark.parametrize("renews", [False, True])
def test_a_proposal_among_three(tmp_path: Path, writes: Writes, renews: bool) -> None:
    payco, *others = several_companies(tmp_path)
    before = payco.words
    make_keys("payco", payco.folder / "keys-2", 9)
    keys = payco.folder / "keys-2" if renews else None
    payco.propose("kmeans.clusters=4", keys=keys)
    for each in others:
        writes.interrupt_everywhere(lambda each=each: each.accept(payco.sent("proposal")))
    payco.accept(others[0].sent("answer"))
    writes.interrupt_everywhere(lambda: payco.accept(others[1].sent("answer")))
    for each in others:
        writes.interrupt_everywhere(lambda each=each: each.accept(payco.sent("decision")))
    assert {each.words for each in others} == {payco.words} != {before}
