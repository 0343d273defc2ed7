"""What can go wrong, as one sentence and one exit code each.

A worker may run in another process or behind a Java runner, where only text comes back. So every error prints itself
as ``veilmeans[code]: sentence`` and `recover_error` finds that line again inside whatever the runner made of it.
"""

import re

_ENDS = (r"\n", r"\\n", r" \[while running", r"\. gRPC client debug context", r"\. Client context", r"\. Detail: ", "$")
"""What runners and gRPC write right behind a sentence."""
_MARK = re.compile(rf"(?:veilmeans\[(\d+)\]: )+(.*?)(?={'|'.join(_ENDS)})")
"""Beam makes an error anew from its text and the step's name, so the mark may stand there twice."""


class VeilmeansError(Exception):
    """A mistake or a mishap that the user can act on."""

    code = 1

    def __init__(self, sentence: str) -> None:
        self.sentence = " ".join(sentence.split())
        super().__init__(f"veilmeans[{self.code}]: {self.sentence}")

    def __reduce__(self) -> tuple[type["VeilmeansError"], tuple[str]]:
        return type(self), (self.sentence,)


class ConfigError(VeilmeansError):
    """The job's configuration, or a file it names, is not right."""

    code = 2


class InputError(VeilmeansError):
    """The data are not what the configuration says."""

    code = 3


class HandshakeError(VeilmeansError):
    """The parties do not mean the same job."""

    code = 4


class PeerError(VeilmeansError):
    """A peer did not answer in time."""

    code = 5


class RefusedError(VeilmeansError):
    """A message was altered, forged, truncated, too large, or contradicts an earlier one."""

    code = 6


class CertificateError(VeilmeansError):
    """A certificate is missing, expired, or not the pinned one."""

    code = 7


class StorageError(VeilmeansError):
    """A disk is full or a folder cannot be used."""

    code = 8


_BY_CODE: dict[int, type[VeilmeansError]] = {
    cls.code: cls
    for cls in (
        VeilmeansError,
        ConfigError,
        InputError,
        HandshakeError,
        PeerError,
        RefusedError,
        CertificateError,
        StorageError,
    )
}


def recover_error(error: BaseException | str) -> VeilmeansError | None:
    """The veilmeans error inside the text of `error`, or None if there is none."""
    if isinstance(error, VeilmeansError) and not _MARK.match(error.sentence):
        return error
    found = _MARK.search(str(error))
    if found is None:
        return None
    return _BY_CODE.get(int(found[1]), VeilmeansError)(_unquoted(found[2].strip()))


def _unquoted(sentence: str) -> str:
    """The sentence without the closing quote of a text that was quoted whole."""
    last = sentence[-1:]
    return sentence[:-1] if last in ("'", '"') and sentence.count(last) % 2 else sentence
