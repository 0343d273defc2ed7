"""Message keys, which peers send, and envelopes: a malformed one is refused."""

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from veilmeans.schemas import message
from veilmeans.schemas.address import Address
from veilmeans.schemas.errors import RefusedError
from veilmeans.schemas.message import HEADER_SIZE, Header, MessageKey, iteration_in, open_envelope

names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}", fullmatch=True)
numbers = st.integers(0, 2**62 - 1)
iterations = st.integers(-(2**62), 2**62 - 1)
keys = st.builds(MessageKey, st.builds(Address, names, iterations, names, numbers), names, names)
KEY = MessageKey(Address("run", 0, "stage", 7), "payco", "shop")
GOOD = ["run", 0, "stage", 7, "payco", "shop"]


@given(keys)
def test_a_key_comes_back_from_its_text(key: MessageKey) -> None:
    assert MessageKey.parse(key.to_json()) == key
    assert MessageKey.parse(key.to_json().encode()) == key


@given(keys)
def test_a_key_stays_below_its_folder(key: MessageKey) -> None:
    parts = key.path.split("/")
    assert len(parts) == 4
    assert not {"", ".", ".."} & set(parts)


@pytest.mark.parametrize("place", [0, 2, 4, 5])
@pytest.mark.parametrize(
    "name", ["../x", "..", ".", "", "a/b", "/etc", "a\\b", "a\0", "a\n", "ä", ".hidden", "-x", "x" * 81, 5, None, ["a"]]
)
def test_a_key_with_a_malformed_name_is_refused(place: int, name: object) -> None:
    with pytest.raises(RefusedError, match="a name"):
        MessageKey.parse(json.dumps([*GOOD[:place], name, *GOOD[place + 1 :]]))


MALFORMED = (2**62, -(2**62) - 1, 1.0, "1", True, None, [1])


@pytest.mark.parametrize(("place", "number"), [(3, -1), *((place, number) for place in (1, 3) for number in MALFORMED)])
def test_a_key_with_a_malformed_number_is_refused(place: int, number: object) -> None:
    with pytest.raises(RefusedError, match="a number"):
        MessageKey.parse(json.dumps([*GOOD[:place], number, *GOOD[place + 1 :]]))


@pytest.mark.parametrize(
    "text",
    ["", "x", "5", "null", "true", "[]", "{}", json.dumps(GOOD[:5]), json.dumps([*GOOD, 1]), b"\xff", "[" * 100_000],
)
def test_text_that_is_not_a_key_is_refused(text: str | bytes) -> None:
    with pytest.raises(RefusedError, match="malformed message key"):
        MessageKey.parse(text)


@given(st.binary(max_size=100))
def test_any_text_is_a_key_or_is_refused(text: bytes) -> None:
    with pytest.raises(RefusedError):
        MessageKey.parse(text)


@given(st.binary(max_size=200))
def test_a_payload_comes_back_from_its_envelope(payload: bytes) -> None:
    packed = Header.of(pa.py_buffer(payload)).pack()
    assert len(packed) == HEADER_SIZE
    assert Header.unpack(packed, KEY) == Header.of(pa.py_buffer(payload))
    assert open_envelope(KEY, pa.py_buffer(packed + payload)).to_pybytes() == payload


@given(st.binary(min_size=1, max_size=40), st.data())
def test_an_envelope_with_any_byte_changed_is_refused(payload: bytes, data: st.DataObject) -> None:
    envelope = bytearray(Header.of(pa.py_buffer(payload)).pack() + payload)
    meaningful = [*range(48), *range(HEADER_SIZE, len(envelope))]
    envelope[data.draw(st.sampled_from(meaningful))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(RefusedError, match="run/0/stage/7 from payco to shop"):
        open_envelope(KEY, pa.py_buffer(bytes(envelope)))


@given(st.binary(min_size=1, max_size=40), st.data())
def test_an_envelope_that_is_too_short_or_too_long_is_refused(payload: bytes, data: st.DataObject) -> None:
    envelope = Header.of(pa.py_buffer(payload)).pack() + payload
    length = data.draw(st.integers(0, len(envelope) - 1))
    for wrong in (envelope[:length], envelope + b"\0"):
        with pytest.raises(RefusedError, match="truncated"):
            open_envelope(KEY, pa.py_buffer(wrong))


def test_iterations_are_read_from_names_of_folders() -> None:
    assert [iteration_in(name) for name in ("0", "12", "-3", "x", "", "1.0", "²")] == [0, 12, -3, *[None] * 4]


def test_the_header_of_a_checked_payload_is_known_as_long_as_the_payload_is_there() -> None:
    """The receiver records a message's digest without hashing it a second time, and never another payload's."""
    payload = pa.py_buffer(b"abc")
    header = Header.of(payload)
    header.check(KEY, payload)
    assert Header.known(payload) is header
    other = pa.py_buffer(b"abd")
    assert Header.known(other) == Header.of(other) != header
    name = id(payload)
    del payload
    assert name not in message._checked
