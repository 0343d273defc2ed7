"""Changed inputs: a right one with a few edits, as hypothesis draws them, so that it can shrink and keep them."""

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

TOKENS = (
    *(b"0", b"-1", b"1e999", b"NaN", b"null", b"true", b'""', b"[]", b"{}", b"18446744073709551616", b"9" * 5000),
    *(b"[" * 3000, b'{"a":' * 3000, b"&a [*a,*a,*a]", b"*a", b"!!python/name:os.system", b"\xff\xfe", b"\0"),
    *(b"../../x", b"/dev/zero", b"\x1b[31m", "\u202e".encode(), "\u2028".encode(), b"\r\n", b"=cmd", b"\\u0000"),
    *((1 << 63).to_bytes(8, "little"), (-1).to_bytes(8, "little", signed=True), (1 << 40).to_bytes(8, "big")),
)
_LONGEST_COPY = 4096


@dataclass(frozen=True)
class Edit:
    """A change at a place, given as a part of the length: `size` bytes go, `new` comes `times` times."""

    place: float
    size: int
    new: bytes
    times: int = 1

    def apply(self, content: bytes) -> bytes:
        start = int(self.place * (len(content) + 1))
        return content[:start] + self.new * self.times + content[start + self.size :]


@dataclass(frozen=True)
class Flip:
    """One other bit."""

    place: float
    bit: int

    def apply(self, content: bytes) -> bytes:
        if not content:
            return content
        position = min(int(self.place * len(content)), len(content) - 1)
        return content[:position] + bytes([content[position] ^ 1 << self.bit]) + content[position + 1 :]


@dataclass(frozen=True)
class Repeat:
    """A piece that stands there twice, or in another place."""

    source: float
    place: float
    size: int

    def apply(self, content: bytes) -> bytes:
        start = int(self.source * (len(content) + 1))
        return Edit(self.place, 0, content[start : start + self.size]).apply(content)


places = st.floats(0, 1, exclude_max=True)
sizes = st.integers(0, 16) | st.integers(0, _LONGEST_COPY)
edits = st.one_of(
    st.builds(Flip, places, st.integers(0, 7)),
    st.builds(Edit, places, sizes, st.binary(max_size=16)),
    st.builds(Edit, places, sizes, st.sampled_from(TOKENS)),
    st.builds(Edit, places, st.just(0), st.binary(min_size=1, max_size=2), st.integers(1, 2000)),
    st.builds(Repeat, places, places, sizes),
)


def mutated(right: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """One of the right inputs with up to five edits, or bytes that never were right."""
    edited = st.builds(_edit, st.sampled_from(list(right)), st.lists(edits, min_size=1, max_size=5))
    return st.one_of(edited, edited, edited, st.binary(max_size=200))


def _edit(content: bytes, changes: "list[Edit | Flip | Repeat]") -> bytes:
    for change in changes:
        content = change.apply(content)
    return content
