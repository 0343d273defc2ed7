"""Rounds with ciphertexts: size and number of their messages, one use of every mask, and refused messages."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product as pairs
from typing import Any

import numpy as np
import pytest
from gmpy2 import mpz

from support.he_messages import (
    CIPHERTEXT_STAGES,
    DISTANCE,
    ENCRYPT,
    UNMASK,
    Forge,
    Message,
    MessageRecorder,
    he_job,
    record_run,
)
from support.kmeans_in_memory import PAILLIER, SMALL, Table, deal_plan, horizontal, keyrings, vertical
from support.parties import NAMES
from veilmeans.crypto import prg
from veilmeans.crypto.he import scheme as he
from veilmeans.crypto.he.product_parameters import SchemeParameters
from veilmeans.crypto.he.scheme import PublicKey
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Array
from veilmeans.schemas.errors import RefusedError
from veilmeans.schemas.layout import Layout
from veilmeans.schemas.party import Party
from veilmeans.transforms.kmeans.job_trace import trace_job
from veilmeans.transforms.kmeans.steps import KMeansSteps
from veilmeans.transforms.rounds.executor import Over

LAYOUTS = ["vertical", "horizontal"]
Runs = dict[str, tuple[KMeansSteps, MessageRecorder]]


@pytest.fixture(scope="module")
def runs() -> Runs:
    """Two vertical iterations and a horizontal one, with several row shards and column shards."""
    jobs = {"vertical": he_job(vertical(9, (3, 4), 4)), "horizontal": he_job(horizontal((5, 4, 2), 5, 4), 2)}
    return {
        name: (kmeans, record_run(kmeans, iterations=2 if name == "vertical" else 1)) for name, kmeans in jobs.items()
    }


@pytest.mark.parametrize("layout", LAYOUTS)
def test_messages_are_as_large_as_the_trace_says(runs: Runs, layout: str) -> None:
    kmeans, recorder = runs[layout]
    plan, sizes = trace_job(kmeans), Counter[tuple[int, str, int, int]]()
    for message in recorder.sent:
        sizes[message.iteration, message.stage, message.shard, message.sender] += message.array.nbytes
    expected = {
        (iteration, stage.name, shard, sender): size
        for iteration in range(2 if layout == "vertical" else 1)
        for step in plan.steps
        if step.over is not Over.ONE and (step.when in ("iteration", "last") or iteration == 0)
        for shard, shape in enumerate(plan.shapes(step.over))
        for stage in step.stages[shape]
        for sender, size in enumerate(stage.sent)
        if size
    }
    stages = {stage for _, stage, _, _ in expected}
    assert stages > CIPHERTEXT_STAGES.keys()
    last = max(iteration for iteration, *_ in expected)
    assert {key: size for key, size in sizes.items() if key[1] in stages and size and key[0] <= last} == expected


@pytest.mark.parametrize("layout", LAYOUTS)
def test_four_stages_send_ciphertexts_and_none_sends_a_matrix(runs: Runs, layout: str) -> None:
    _, recorder = runs[layout]
    assert {(message.stage, message.name) for message in recorder.ciphertexts()} == set(CIPHERTEXT_STAGES.items())
    assert not [message for message in recorder.sent if "operand" in message.stage]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_repeated_send_gives_the_same_bytes(runs: Runs, layout: str) -> None:
    _, recorder = runs[layout]
    assert len(recorder.sent) == len(recorder.repeated) > 20
    for first, again in zip(recorder.sent, recorder.repeated, strict=True):
        assert first.metadata == again.metadata
        assert first.array.tobytes() == again.array.tobytes()


def ciphertext_count(recorder: MessageRecorder, stage: str) -> int:
    return sum(message.array.size for message in recorder.ciphertexts(stage))


def test_ciphertexts_over_columns_do_not_depend_on_rows_and_row_shards() -> None:
    """One ciphertext for each column and pack of each owner, from or to each peer."""
    for layout in (vertical(6, (3, 4), 6), vertical(6, (3, 4), 1), vertical(24, (3, 4), 5)):
        recorder = record_run(he_job(layout))
        assert ciphertext_count(recorder, ENCRYPT) == ciphertext_count(recorder, UNMASK) == 3 + 4
    for rows in ((3, 3), (11, 8)):
        recorder = record_run(he_job(horizontal(rows, 5, 3)))
        assert ciphertext_count(recorder, ENCRYPT) == ciphertext_count(recorder, UNMASK) == 2 * 5


@pytest.mark.parametrize("layout", [vertical(7, (3, 4), 4), horizontal((4, 3), 5, 3)])
def test_the_number_of_zeros_does_not_change_number_and_size_of_messages(layout: Layout) -> None:
    metadata = [[message.metadata for message in record_run(he_job(layout), zeros).sent] for zeros in (0.0, 0.8, 1.0)]
    assert metadata[0] == metadata[1] == metadata[2]


# one mask, one use
@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_two_ciphertexts_are_equal(runs: Runs, layout: str) -> None:
    """Only a message that goes to several owners is sent several times."""
    _, recorder = runs[layout]
    sent = recorder.ciphertexts()
    origins: dict[bytes, set[tuple[Any, ...]]] = {}
    for message in sent:
        for number, residue in enumerate(message.residues):
            origins.setdefault(residue, set()).add((*message.key[:4], message.name, number))
    assert sum(map(len, origins.values())) == len(origins)
    assert len(origins) == sum(message.array.size for message in sent if is_first_copy(message, sent))


def is_first_copy(message: Message, sent: Sequence[Message]) -> bool:
    """Return whether no recipient before this one gets the same array."""
    same = [other.recipient for other in sent if other.array.tobytes() == message.array.tobytes()]
    return message.recipient == min(same)


@pytest.mark.parametrize("layout", [vertical(9, (3, 4), 4), horizontal((5, 4, 2), 5, 4), vertical(9, (2, 3, 2), 4)])
def test_no_randomness_of_ciphertexts_is_drawn_twice(layout: Layout) -> None:
    """Every stage, shard and iteration has its own addresses, and every party its own seed."""
    kmeans = he_job(layout, columns_per_shard=2)
    drawn: list[tuple[Any, ...]] = []
    plan = trace_job(kmeans)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prg, "uniform", partial(record_draw, prg.uniform, drawn))
        deal_plan(kmeans, 2)
    for_ciphertexts = [draw for draw in drawn if draw[2].endswith((".blind", ".mask")) and "bits." not in draw[2]]
    needs = [
        (iteration, shard, stage, need)
        for iteration in range(2)
        for shard in range(plan.store_shards)
        for stage, each in plan.ciphertext_needs(shard, iteration).items()
        for need in each
    ]
    assert len(for_ciphertexts) == len(set(for_ciphertexts)) == sum(1 + need.masked for *_, need in needs)
    labels = [(*where, need.maker, need.label) for *where, need in needs]
    assert len(labels) == len(set(labels)) > 20
    assert {stage for _, _, stage, _ in needs} == CIPHERTEXT_STAGES.keys()
    assert len({ring.seed for ring in keyrings(layout.parties)}) == layout.parties


def record_draw(
    draw: Callable[..., Any], drawn: list[tuple[Any, ...]], seed: bytes, address: Address, label: str, *rest: Any
) -> Any:
    drawn.append((seed, address, label))
    return draw(seed, address, label, *rest)


def test_ciphertexts_of_a_label_are_used_once_in_a_round() -> None:
    kmeans = he_job(vertical(4, (2, 2), 4))
    table = Table.of(deal_plan(kmeans, 1), kmeans.engines.cipher)
    assert kmeans.encrypt is not None
    (stage,) = kmeans.encrypt.protocol.stages()
    randomness, (product, _) = table.contexts[0].randomness(stage, 0), kmeans.engines.distance
    assert product is not None
    (label,) = (need.label for need in trace_job(kmeans).ciphertext_needs(0, 0)[ENCRYPT] if need.maker == 0)
    party, values = Party(0, NAMES[:2]), np.ones((2, 3), np.uint64)
    randomness.he().encrypt(label, party, product, values)
    with pytest.raises(ValueError, match="twice"):
        randomness.he().encrypt(label, party, product, values)


# messages that are refused
FORGED: dict[str, Callable[[PublicKey], mpz]] = {
    "zero": lambda _: mpz(0),
    "the modulus": lambda key: key.modulus,
    "all bits": lambda key: (mpz(1) << 8 * key.size) - 1,
    "not a unit": lambda key: secret_factor(key) * 5,
}
ABOVE_BOUND: dict[str, Callable[[PublicKey], mpz]] = {
    "a random residue": lambda key: mpz(3) ** 5000 % key.modulus,
    "the largest plaintext": lambda key: (
        key.encrypt_unrandomised((mpz(1) << key.capacity) - 1) * key.encrypt_zero(mpz(7)) % key.modulus
    ),
}
"""Ciphertexts that only decryption shows to be wrong."""


def secret_factor(key: PublicKey) -> mpz:
    """A factor of the modulus, which only the key's owner knows."""
    rings = keyrings(2, SchemeParameters(key.scheme, key.bits))
    own = next(ring.own for ring in rings if ring.own.public == key)
    return mpz(own.to_json()["q"], 16)


def forge_last(stage: str, value: Callable[[PublicKey], mpz], cipher: SchemeParameters, message: Message) -> Array:
    """Replace shop's last ciphertext of a stage; it is under shop's key, or under payco's where payco decrypts."""
    if (message.stage, message.sender) != (stage, 1) or not message.has_ciphertexts:
        return message.array
    key = keyrings(2, cipher)[1 if message.name == "y" else 0].own.public
    forged = message.array.copy()
    forged[-1, -1] = he.to_ciphertexts([value(key)], key.size)[0]
    return forged


def refusal(forge: Forge, cipher: SchemeParameters = SMALL) -> str:
    """Run with forged messages; return the error, which names shop and no value."""
    with pytest.raises(RefusedError) as raised:
        record_run(he_job(vertical(5, (2, 2), 3), 2, cipher), forge=forge)
    sentence = raised.value.sentence
    assert sentence.startswith("shop ")
    assert not re.search(r"\d{5}|[0-9a-f]{16}", sentence)
    return sentence


CASES = [*pairs(CIPHERTEXT_STAGES, FORGED, [SMALL]), *pairs((ENCRYPT, UNMASK), ("zero", "not a unit"), [PAILLIER])]


@pytest.mark.parametrize(("stage", "what", "cipher"), CASES)
def test_residues_that_are_not_ciphertexts_are_refused(stage: str, what: str, cipher: SchemeParameters) -> None:
    assert "not a ciphertext" in refusal(partial(forge_last, stage, FORGED[what], cipher), cipher)


@pytest.mark.parametrize("stage", [DISTANCE, UNMASK])
@pytest.mark.parametrize("what", ABOVE_BOUND)
def test_a_plaintext_above_the_bound_is_refused(stage: str, what: str) -> None:
    assert "above the bound" in refusal(partial(forge_last, stage, ABOVE_BOUND[what], SMALL))


def alter(stage: str, change: Callable[[Array], Array | None], message: Message) -> Array | None:
    """Change shop's ciphertexts of a stage."""
    from_shop = (message.stage, message.sender) == (stage, 1) and message.has_ciphertexts
    return change(message.array) if from_shop else message.array


SHAPES: dict[str, Callable[[Array], Array | None]] = {
    "nothing": lambda _: None,
    "another type": lambda array: array.view(np.uint64),
    "longer residues": lambda array: np.zeros(array.shape, f"V{array.dtype.itemsize + 1}"),
    "a row less": lambda array: array[1:],
    "other axes": lambda array: array.T if array.shape[0] != array.shape[1] else array.reshape(-1),
}


@pytest.mark.parametrize("stage", CIPHERTEXT_STAGES)
@pytest.mark.parametrize("what", SHAPES)
def test_another_shape_or_type_is_refused(stage: str, what: str) -> None:
    sentence = refusal(partial(alter, stage, SHAPES[what]))
    assert repr(CIPHERTEXT_STAGES[stage]) in sentence
    assert "V192" in sentence
