"""The targets of `make fuzz`: inputs that it once found are refused with a sentence, and a finding is noticed."""

import random
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from benchmarks.fuzz.__main__ import Fuzzer
from benchmarks.fuzz.mutations import Edit, Flip, Repeat
from benchmarks.fuzz.targets import TARGETS, Target
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from veilmeans.schemas.errors import VeilmeansError

DEEP = b"[" * 3000
LONG_KEY = b"VEILMSG1" + bytes(40) + (0xFFFFFFF0).to_bytes(4, "big") + bytes(12)
"""The head of a record in a message log whose key would have four gigabytes."""
FOUND = (DEEP, b'{"a":' * 3000, LONG_KEY, b"\xc4", b"a: 2001-99-99\n", b"")


@pytest.mark.parametrize("target", TARGETS, ids=[target.name for target in TARGETS])
def test_inputs_that_were_found_end_in_a_sentence(tmp_path: Path, target: Target) -> None:
    with ExitStack() as stack:
        right, read = target.make(tmp_path, stack)
        drawn = random.Random(1)
        flipped = [Flip(drawn.random(), drawn.randrange(8)).apply(each) for each in right for _ in range(20)]
        for content in (*right, *flipped, *FOUND, *(each + DEEP for each in right), *(DEEP + each for each in right)):
            with suppress(VeilmeansError):
                read(content)


@pytest.mark.parametrize("error", [KeyError, MemoryError, RecursionError])
def test_an_exception_that_is_no_sentence_is_a_finding(tmp_path: Path, error: type[Exception]) -> None:
    def raising(content: bytes) -> None:
        if b"x" in content:
            raise error

    (tmp_path / "examples").mkdir()
    fuzzer = Fuzzer(Target("raising", lambda _folder, _stack: ([b"a"], raising)), tmp_path, 1)
    finding = fuzzer.run(60.0)
    assert error.__name__ in (finding or "")
    assert b"x" in next(tmp_path.glob("raising-*.input")).read_bytes()


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=20), st.floats(0, 1, exclude_max=True), st.integers(0, 9))
def test_edits_change_what_they_say(content: bytes, place: float, size: int) -> None:
    assert Edit(place, 0, b"new").apply(content).replace(b"new", b"", 1) == content or b"new" in content
    assert len(Repeat(place, place, size).apply(content)) <= len(content) + size
    assert (Flip(place, 3).apply(content) != content) == bool(content)
