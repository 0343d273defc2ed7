"""Beam's retries: none in calls that we repeat ourselves, as ever in all others."""

import pytest
from apache_beam.utils import retry

from support.faulty_bucket import PLACE, faulty_bucket
from veilmeans.io.files.beam_retries import without_beam_retries
from veilmeans.io.files.shared_files import open_store


class Pauses(retry.Clock):
    """Pauses that take no time."""

    def __init__(self) -> None:
        self.count = 0

    def sleep(self, _seconds: float) -> None:
        self.count += 1


def test_beam_repeats_no_call_that_we_repeat() -> None:
    pauses, calls = Pauses(), 0

    @retry.with_exponential_backoff(num_retries=3, clock=pauses)
    def fail() -> None:
        nonlocal calls
        calls += 1
        raise OSError("away")

    def count() -> tuple[int, int]:
        with pytest.raises(OSError, match="away"):
            fail()
        return calls, pauses.count

    with without_beam_retries():
        assert count() == (1, 0)
    assert count() == (5, 3)


def test_a_bucket_that_is_away_is_an_error_at_once() -> None:
    """With Beam's own retries this would take eight minutes."""
    with faulty_bucket() as bucket:
        store = open_store(PLACE, bucket.flags)
        store.put("a", b"content")
        bucket.leave()
        for call in (lambda: store.get("a"), lambda: store.digest("a"), lambda: store.names("")):
            with pytest.raises(Exception, match=r"Could not connect|Connection was closed|List operation failed"):
                call()
        bucket.come_back()
        assert store.get("a") == b"content"
