"""One recipient's side of an opening: shares that are not right, or are missing, are refused."""

from typing import Any

import numpy as np
import pytest

from veilmeans.crypto import ring
from veilmeans.schemas.arrays import Array
from veilmeans.schemas.errors import RefusedError
from veilmeans.schemas.layout import Layout
from veilmeans.schemas.party import Party
from veilmeans.transforms.kmeans.open_results import assignments_round, centroids_round
from veilmeans.transforms.openings.reveal_policy import RevealPolicy
from veilmeans.transforms.rounds.protocol import Inbox

LAYOUT = Layout(True, (8, 8), (1, 2), 8)
PAIR = Party(0, ("bank", "shop"))
NO_RANDOMNESS: Any = None


def test_shares_that_do_not_open_to_one_cluster_for_each_row_are_refused() -> None:
    opening = assignments_round(RevealPolicy(LAYOUT, assignments=frozenset({0})))
    state = {"c": np.array([[0x0F], [0xF0]], np.uint64), "rows": np.array([8]), "owner": np.array([2])}
    right = Inbox(PAIR, {1: {"c": np.zeros((2, 1), np.uint64)}})
    opened = opening.receive(PAIR, state, right, NO_RANDOMNESS)
    assert opened["label"].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    for wrong in ([[1], [0]], [[0x0F], [0]]):  # [[1], [1]] opens to another cluster: nobody can see that
        bad = Inbox(PAIR, {1: {"c": np.array(wrong, np.uint64)}})
        with pytest.raises(RefusedError, match="shop"):
            opening.receive(PAIR, state, bad, NO_RANDOMNESS)
    with pytest.raises(RefusedError, match=r"shop.*'c'"):
        opening.receive(PAIR, state, Inbox(PAIR, {1: {}}), NO_RANDOMNESS)


@pytest.mark.parametrize("omitted", ["mu", "shift", "factor", "inertia"])
def test_a_peer_that_omits_an_agreed_result_is_refused(omitted: str) -> None:
    everyone = frozenset({0, 1})
    policy = RevealPolicy(LAYOUT, centroids=everyone, all_columns=True, inertia=everyone)
    opening = centroids_round(policy)

    def state(columns: int) -> dict[str, Array]:
        scale = {name: np.ones(columns) for name in ("shift", "factor")}
        shares = {"mu": np.ones((2, 3), ring.DTYPE), "inertia": np.ones(1, ring.DTYPE)}
        return {**scale, **shares, "names": np.frombuffer(b"\n".join([b"x"] * columns), np.uint8)}

    other = Party(1, PAIR.names)
    sent = dict(opening.send(other, state(2), NO_RANDOMNESS).for_peer(0))
    opened = opening.receive(PAIR, state(1), Inbox(PAIR, {1: sent}), NO_RANDOMNESS)
    assert opened["centroids"].tolist() == [[2, 2, 2]] * 2
    del sent[omitted]
    with pytest.raises(RefusedError, match=f"shop.*'{omitted}'"):
        opening.receive(PAIR, state(1), Inbox(PAIR, {1: sent}), NO_RANDOMNESS)
