"""Freed memory is returned to the system after so much work, and in small jobs never."""

import numpy as np
import pytest

from veilmeans.io.storage import freed_memory
from veilmeans.schemas.arrays import nbytes


@pytest.fixture
def returned(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """An entry for each time that memory was returned."""
    times = list[None]()
    monkeypatch.setattr(freed_memory, "release", lambda: times.append(None))
    monkeypatch.setattr(freed_memory, "_worked", 0)
    return times


def test_memory_is_returned_after_so_many_bytes_of_arrays(
    returned: list[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(freed_memory, "WORKED", 1_000)
    state = {"x": np.zeros(50, np.uint64), "bits": np.zeros(100, np.uint8)}
    seen = []
    for _ in range(8):
        freed_memory.release_often(nbytes(state))
        seen.append(len(returned))
    assert seen == [0, 1, 1, 2, 2, 3, 3, 4]


def test_small_jobs_return_nothing(returned: list[None]) -> None:
    for _ in range(1_000):
        freed_memory.release_often(8_000)
    assert not returned


def test_memory_can_be_returned_wherever_we_run() -> None:
    freed_memory.release()
