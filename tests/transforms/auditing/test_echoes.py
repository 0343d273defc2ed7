"""Echoes of three parties: who says different things to two others is found before anything is opened."""

from pathlib import Path

import numpy as np
import pytest

from support.parties import NAMES
from support.worlds import World, blobs, make_world, tables
from veilmeans.schemas.errors import RefusedError
from veilmeans.transforms.auditing.echoes import find_equivocation
from veilmeans.transforms.rounds.party_context import OpenPartyContext
from veilmeans.transforms.rounds.protocol import Sent, Stage

THREE = NAMES[:3]


def three(folder: Path) -> World:
    data = tables(blobs(12, 3), ["a", "b", "c"], [1, 2], axis=1)
    job = {"layout": "vertical", "clusters": 2, "max_iter": 2, "reveal": {"assignments": THREE}}
    return make_world(folder, data, job, beam={"rows_per_shard": 8})


def test_the_sender_and_the_two_that_differ_are_named() -> None:
    heard = {name: {"assign.01": "a"} for name in THREE}
    find_equivocation(THREE[0], THREE[1], 3, heard, heard)
    other = {**heard, THREE[2]: {"assign.01": "b"}}
    said = f"{THREE[2]} said one thing to {THREE[0]} and another to {THREE[1]}.*iteration 3, assign.01"
    with pytest.raises(RefusedError, match=said):
        find_equivocation(THREE[0], THREE[1], 3, heard, other)
    with pytest.raises(RefusedError, match=f"{THREE[1]} does not repeat what it heard from {THREE[0]}"):
        find_equivocation(THREE[0], THREE[1], 3, heard, {**heard, THREE[0]: {}})


@pytest.mark.slow
def test_a_party_that_says_different_things_ends_the_run_before_anything_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second party changes one bit of one broadcast to the third: no shape and no digest is wrong."""
    world, outgoing = three(tmp_path), OpenPartyContext.outgoing

    def lying(self: OpenPartyContext, stage: Stage, shard: int, sent: Sent) -> list:
        messages = outgoing(self, stage, shard, sent)
        if self.party.index != 1 or not stage.name.startswith("quotient.00") or self.iteration != 0:
            return messages
        changed = {name: array ^ np.ones((), array.dtype) for name, array in sent.message.items()}
        lies = outgoing(self, stage, shard, Sent(sent.state, changed))
        return [lie if lie.key.recipient == THREE[2] else true for true, lie in zip(messages, lies, strict=True)]

    monkeypatch.setattr(OpenPartyContext, "outgoing", lying)
    with pytest.raises(RefusedError, match=r"said one thing to|does not repeat") as error:
        world.train()
    assert THREE[1] in error.value.sentence or THREE[2] in error.value.sentence
    assert not any(world.run_folder(name).result.exists() for name in THREE)
