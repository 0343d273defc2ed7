"""Errors that a user can act on: one sentence and an exit code for each kind.

A worker may run in another process or under a Java runner, from which only text comes back. So every error prints
itself as ``veilmeans[code]: sentence`` and `recover_error` finds that line in the text that the runner made of it.
"""

import re

INTERRUPTED = 130  # the exit code after Ctrl-C; all other codes are those of the classes below
_ENDS = (r"\n", r"\\n", r" \[while running", r"\. gRPC client debug context", r"\. Client context", r"\. Detail: ", "$")
"""Text that runners and gRPC append to a sentence."""
_MARK = re.compile(rf"(?:veilmeans\[(\d+)\]: )+(.*?)(?={'|'.join(_ENDS)})")
"""The mark may occur twice: Beam builds a new error from the text of the first and the name of the step."""


def printable(text: str) -> str:
    """Return a text with control characters, and those that change the direction of writing, escaped."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


class VeilmeansError(Exception):
    """An error that the user can act on."""

    code = 1

    def __init_subclass__(cls, code: int) -> None:
        cls.code = code

    def __init__(self, sentence: str) -> None:
        self.sentence = printable(" ".join(sentence.split()))  # it may quote what a peer sent
        super().__init__(f"veilmeans[{self.code}]: {self.sentence}")

    def __reduce__(self) -> tuple[type["VeilmeansError"], tuple[str]]:
        return type(self), (self.sentence,)


class ConfigError(VeilmeansError, code=2):
    """The configuration, or a file that it names, is wrong."""


class InputError(VeilmeansError, code=3):
    """The data differ from what the configuration says."""


class HandshakeError(VeilmeansError, code=4):
    """The parties have configured different jobs."""


class PeerError(VeilmeansError, code=5):
    """A peer did not answer in time."""


class RefusedError(VeilmeansError, code=6):
    """A message was altered, forged, truncated, too large, or contradicts an earlier one."""


class CertificateError(VeilmeansError, code=7):
    """A certificate is missing, expired, or not the pinned one."""


class StorageError(VeilmeansError, code=8):
    """A disk is full or a folder cannot be used."""


_KINDS: list[type[VeilmeansError]] = [VeilmeansError, *VeilmeansError.__subclasses__()]
_BY_CODE = {kind.code: kind for kind in _KINDS}


def recover_error(error: BaseException | str) -> VeilmeansError | None:
    """Find the veilmeans error in the text of `error`; None if there is none."""
    if isinstance(error, VeilmeansError) and not _MARK.match(error.sentence):
        return error
    found = _MARK.search(str(error))
    if found is None:
        return None
    return _BY_CODE.get(int(found[1]), VeilmeansError)(_unquoted(found[2].strip()))


def _unquoted(sentence: str) -> str:
    """Remove the closing quote that belongs to a quotation of the entire text."""
    last = sentence[-1:]
    return sentence[:-1] if last in ("'", '"') and sentence.count(last) % 2 else sentence
