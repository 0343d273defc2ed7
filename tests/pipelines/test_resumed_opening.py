"""An opening that is rerun after a kill needs no peer that has what it needs."""

from pathlib import Path
from typing import Any

import pytest

from support.parties import NAMES
from support.worlds import blobs, make_world, run_in_threads, tables
from veilmeans.pipelines.reveal import run_reveal
from veilmeans.pipelines.session import session
from veilmeans.schemas.config import JobConfig

pytestmark = pytest.mark.slow
A, B = NAMES[:2]


class KilledError(Exception):
    """As if the process had been killed."""


def test_a_party_that_was_killed_in_the_farewell_of_an_opening_resumes_without_its_peer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The peer has what it needs, and is gone."""
    data = tables(blobs(60, 4), [f"c{i}" for i in range(4)], [2], axis=1)
    world = make_world(tmp_path, data, {"layout": "vertical", "clusters": 3, "max_iter": 1, "reveal": {}})
    world.train()
    later = world.altered(exchange={"timeout_s": 5}, kmeans={"reveal": {"assignments": [A], "centroids": [A]}})
    compare = session.compare_statement

    def killed(config: JobConfig, *rest: Any) -> None:
        if config.party == A:
            raise KilledError
        compare(config, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(session, "compare_statement", killed)
        with pytest.raises(KilledError):
            run_in_threads(run_reveal, later.parties)
    result = run_reveal(later[A])
    assert {"assignments", "centroids"} <= result.keys()
    assert run_reveal(later[A]) == result
