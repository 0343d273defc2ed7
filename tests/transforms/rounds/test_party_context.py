"""A party's context: messages of a retry, masks of shards, stages and runs, metrics, and what may be pickled."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from support.parties import NAMES, TRIPLES, InMemoryExchange, deal_stores, make_configs
from veilmeans.crypto import ring
from veilmeans.io.storage.scratch import Scratch
from veilmeans.io.storage.triple_store import Manifest, StoreRun, TripleStore
from veilmeans.schemas.arrays import Array, Arrays, from_stream
from veilmeans.schemas.party import Party
from veilmeans.schemas.run_folder import StoreFolder
from veilmeans.transforms.primitives.multiply import MULTIPLY
from veilmeans.transforms.primitives.share_and_open import OPEN, SHARE
from veilmeans.transforms.rounds.interfaces import Randomness
from veilmeans.transforms.rounds.party_context import OpenPartyContext, PartyContext, send
from veilmeans.transforms.rounds.protocol import Inbox, Protocol, Round, Sent
from veilmeans.transforms.rounds.stage_metrics import StageMetrics

ZEROS = np.zeros((10, 2), ring.DTYPE)


def claim_run(folder: Path, number: int = 0) -> StoreRun:
    """Claim a run of the triple store of a party that gets no corrections."""
    manifest = Manifest("store", runs=2, iterations=1, rows=10, plan="")
    return TripleStore.create(StoreFolder(folder), manifest, bytes(32)).claim(number, f"run{number}", "data")


def open_context(seed: bytes, store: StoreRun | None = None) -> OpenPartyContext:
    return OpenPartyContext(Party(1, NAMES[:3]), "run", 0, InMemoryExchange(), seed, store, Scratch("value"), 1.0)


@pytest.mark.parametrize("protocol", [SHARE, MULTIPLY, OPEN], ids=lambda protocol: protocol.name)
def test_a_retry_sends_the_same_bytes_and_has_the_same_state(tmp_path: Path, protocol: Protocol) -> None:
    x = np.arange(20, dtype=ring.DTYPE).reshape(10, 2)
    store, seed = claim_run(tmp_path), os.urandom(32)
    (stage,) = protocol.stages()
    (state, first), (again, second) = (
        send(open_context(seed, store), stage, 7, {"x": x, "y": x}, StageMetrics()) for _ in range(2)
    )
    assert [(m.key, m.payload.to_pybytes()) for m in first] == [(m.key, m.payload.to_pybytes()) for m in second]
    assert {name: array.tobytes() for name, array in state.items()} == {n: a.tobytes() for n, a in again.items()}


@pytest.mark.parametrize("protocol", [SHARE, MULTIPLY], ids=lambda protocol: protocol.name)
def test_two_shards_and_two_stages_never_share_a_mask(tmp_path: Path, protocol: Protocol) -> None:
    context = open_context(bytes(32), claim_run(tmp_path))
    sent: list[Array] = []
    for stage in (protocol * 2).stages():
        for shard in range(2):
            _, messages = send(context, stage, shard, {"x": ZEROS, "y": ZEROS}, StageMetrics())
            distinct = {message.payload.to_pybytes(): message for message in messages}
            sent += [array for message in distinct.values() for array in from_stream(message.payload).values()]
    values = np.concatenate([array.reshape(-1) for array in sent])
    assert len(np.unique(values)) == len(values)


def test_expanded_shares_are_kept_only_where_the_same_context_receives(tmp_path: Path) -> None:
    """A stage of a pipeline has a context of its own: what it kept for every shard would grow with the rows."""
    context = open_context(bytes(32), claim_run(tmp_path))
    (stage,), state = MULTIPLY.stages(), {"x": ZEROS, "y": ZEROS}
    for shard in range(3):
        send(context, stage, shard, state, StageMetrics())
    assert not context.expansions
    send(context, stage, 3, state, StageMetrics(), receives_here=True)
    assert [address.shard for address in context.expansions] == [3]


def test_two_runs_of_a_store_never_share_a_mask_and_a_resumed_run_uses_its_own(tmp_path: Path) -> None:
    (stage,) = MULTIPLY.stages()
    contexts = [open_context(bytes(32), claim_run(tmp_path, number)) for number in (0, 1, 0)]
    state = {"x": ZEROS, "y": ZEROS}
    sent = [send(context, stage, 0, state, StageMetrics())[1][0].payload for context in contexts]
    values = np.concatenate([array.reshape(-1) for payload in sent[:2] for array in from_stream(payload).values()])
    assert len(np.unique(values)) == len(values) == 2 * 2 * 20
    assert sent[0].equals(sent[2])


def test_a_round_that_asks_for_one_mask_twice_is_refused() -> None:
    def mask_twice(party: Party, state: Arrays, randomness: Randomness) -> Sent:
        del party
        return Sent(state, {name: state[name] - randomness.uniform("mask", (10, 2)) for name in "xy"})

    def keep_state(party: Party, state: Arrays, inbox: Inbox, randomness: Randomness) -> Arrays:
        del party, inbox, randomness
        return state

    (stage,) = Protocol("p", (Round("r", mask_twice, keep_state, "x"),)).stages()
    with pytest.raises(ValueError, match=r"'mask' of run/0/p\.00\.r/3"):
        send(open_context(bytes(32)), stage, 3, {"x": ZEROS, "y": ZEROS}, StageMetrics())


def test_metrics_count_messages_and_bytes() -> None:
    metrics = StageMetrics()
    (stage,) = SHARE.stages()
    _, messages = send(open_context(bytes(32)), stage, 0, {"x": ZEROS}, metrics)
    assert metrics.messages == 2
    assert metrics.bytes_sent == sum(message.payload.size for message in messages) > 2 * 160


def test_a_context_is_pickled_without_secrets_and_an_open_one_is_not_pickled(tmp_path: Path) -> None:
    configs = make_configs(tmp_path, kind="files", triples=TRIPLES)
    state: Arrays = {"x": ZEROS, "y": ZEROS}
    stores = deal_stores([config.store_folder for config in configs.values()], MULTIPLY, [{0: state}] * 2)
    config, context = configs["payco"], PartyContext(configs["payco"], "binding", store_number=0)
    pickled = pickle.dumps(context)
    assert pickle.loads(pickled) == context  # noqa: S301
    opened = context.open()
    assert opened.triples == stores[0]
    for secret in (stores[0].seed, config.seed.read_bytes(), config.key.read_bytes(), opened.seed):
        assert secret not in pickled
    with pytest.raises(TypeError, match="secrets"):
        pickle.dumps(opened)


def test_masks_depend_on_the_data_and_on_the_run(tmp_path: Path) -> None:
    config = make_configs(tmp_path, kind="files")["payco"]
    other_run = config.model_copy(update={"run": "other"})
    contexts = [PartyContext(*each) for each in ((config, "a"), (config, "b"), (other_run, "a"), (config, "a"))]
    seeds = [context.open().seed for context in contexts]
    assert len(set(seeds)) == 3
    assert seeds[0] == seeds[3]
