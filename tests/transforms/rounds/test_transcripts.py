"""Transcripts: every message of every protocol is uniform and does not depend on the secrets.

Secrets and shares are fixed, and the worst possible (all zeros; one constant); seeds differ between runs. They are
derived from the number of the run, so the tests give the same result each time. The parties run in step, in one thread,
with the randomness of a real run (`AddressedRandomness` over dealt corrections). Further below, exactly and not by
statistics: every array has its own mask, and no address is used twice.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from support.transcript_cases import (
    CLUSTER_CASES,
    on_scores,
    on_squared_distances,
    on_starts,
    on_weights,
    words,
)
from support.transcripts import (
    ROWS,
    RUNS,
    SAMPLE,
    Case,
    InMemoryStoreRun,
    InStepRun,
    masks_of,
    misused_masks,
    not_uniform,
    record,
    related,
    seeds_of,
    states,
    two_samples,
)
from support.uniformity import LIMIT
from veilmeans.crypto import prg, ring
from veilmeans.crypto.bits import ONES, word_count
from veilmeans.crypto.correlations import BitProducts, Mul, ProductGroups
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Array, Arrays
from veilmeans.schemas.layout import ShardShape
from veilmeans.schemas.party import Party
from veilmeans.transforms.primitives.argmin import Argmin, argmin
from veilmeans.transforms.primitives.bit_injection import b2a, inject
from veilmeans.transforms.primitives.compare import Comparison, sign
from veilmeans.transforms.primitives.divide import Division, numerator, quotient, refine, scale
from veilmeans.transforms.primitives.multiply import MULTIPLY, multiply
from veilmeans.transforms.primitives.share_and_open import OPEN, SHARE
from veilmeans.transforms.primitives.truncate import Truncation, truncate
from veilmeans.transforms.products.cross_product import OPERAND, CrossProduct, cross, mask_operand, shape_to_state
from veilmeans.transforms.rounds.interfaces import Randomness
from veilmeans.transforms.rounds.protocol import Inbox, Protocol, Round, Sent, merge_rounds
from veilmeans.transforms.statistics.profiles import PROFILE_OPERAND
from veilmeans.transforms.statistics.weighted_choice import draw

pytestmark = pytest.mark.slow

CONSTANT = 2**61 + 12345


def packed(parties: int, secret: int, rows: int = ROWS) -> list[Array]:
    return [np.full(word_count(rows), ONES if secret and i == 0 else 0, np.uint64) for i in range(parties)]


def of_rounds(name: str, *rounds: Round) -> Protocol:
    return Protocol(name, rounds)


def on_words(parties: int, protocol: Protocol, *names: str) -> Case:
    return Case(
        protocol,
        parties,
        lambda secret, rows: states(**{name: words(parties, secret * CONSTANT, (rows,)) for name in names}),
    )


def on_bits(parties: int, *rounds: Round) -> Case:
    return Case(
        of_rounds("p", *rounds),
        parties,
        lambda secret, rows: states(
            b=packed(parties, secret, rows),
            x=words(parties, secret * CONSTANT, (rows,)),
            y=words(parties, secret * 5, (rows,)),
        ),
    )


def on_distances(parties: int, k: int, how: Argmin) -> Case:
    def begin(secret: int, rows: int) -> list[Arrays]:
        rising = [words(parties, secret * (CONSTANT - 1000 * i), (rows,)) for i in range(k)]
        return states(d=[np.stack(each) for each in zip(*rising, strict=True)])

    return Case(argmin(how, k, parties), parties, begin)


def on_matrices(parties: int) -> Case:
    """X is rows × 32 at each party, Y has 32 × 32, C rows × 32."""
    products = cross(CrossProduct("y", "d")) + cross(CrossProduct("c", "s", transposed=True))
    protocol = mask_operand(frozenset(range(parties))) + products

    def begin(secret: int, rows: int) -> list[Arrays]:
        y, c = (words(parties, secret * CONSTANT, shape) for shape in ((32, 32), (rows // 32, 32)))
        right = {f"y{i}": y for i in range(parties)} | {f"c{i}": c for i in range(parties)}
        shape = [shape_to_state(ShardShape(rows // 32, (32,) * parties))["shape"]] * parties
        return states(x=[np.full((rows // 32, 32), secret * CONSTANT, ring.DTYPE)] * parties, shape=shape, **right)

    return Case(protocol.named("cross"), parties, begin)


def on_counts(parties: int) -> Case:
    def begin(secret: int, rows: int) -> list[Arrays]:
        return states(
            s=words(parties, secret * 200 * 2**6, (rows, 1)),
            n=words(parties, secret * 200, (rows,)),
            mu=words(parties, secret * 2**6, (rows, 1)),
        )

    division = Division(8, 6)
    protocol = scale(division, parties) + refine(division) + numerator(division) + quotient(division)
    return Case(protocol.named("divide"), parties, begin)


def on_repeated_values(parties: int) -> Case:
    """Three bits for each value, which is masked once."""

    def begin(secret: int, rows: int) -> list[Arrays]:
        x = words(parties, secret * CONSTANT, (rows,))
        several = [np.concatenate([each] * 3) for each in x]
        return states(x=x, several=several, b=packed(parties, secret, 3 * rows))

    step = inject("b", "x", "z", like="several", bit_target="t")
    return Case(Protocol("inject", (step,)), parties, begin)


CASES: dict[str, Case] = {
    f"{name}, M = {m}": case
    for m in (2, 3)
    for name, case in {
        "share": Case(SHARE, m, lambda secret, rows, m=m: states(x=words(m, secret * CONSTANT, (rows, 1)))),
        "multiply": on_words(m, MULTIPLY, "x", "y"),
        "sign of 64 bits": on_words(m, sign(Comparison("x", "b"), m), "x"),
        "sign of 32 bits": on_words(m, sign(Comparison("x", "b", 32), m), "x"),
        "sign with dropped bits": on_words(m, sign(Comparison("x", "b", 40, drop=16, offset=-1), m), "x"),
        "inject": on_bits(m, inject("b", "x", "z")),
        "two injections together": on_bits(m, merge_rounds("both", inject("b", "x", "z"), inject("b", "y", "t"))),
        "b2a": on_bits(m, b2a("b", "x", "z")),
        "sign by many rounds": on_words(m, sign(Comparison("x", "b", 16, radices=(1, 2, 2, 4)), m), "x"),
        "minimum of 5 and its value": on_distances(m, 5, Argmin(least="m", compare_bits=63)),
        "minimum of 4 by narrow values": on_distances(m, 4, Argmin(compare_bits=63, drop=40)),
        "minimum of 4 by all pairs": on_distances(m, 4, Argmin(compare_bits=63, drop=40, method="pairs")),
        "truncate": on_words(m, truncate(Truncation("x", 20)), "x"),
        "inject several bits": on_repeated_values(m),
        "cross": on_matrices(m),
        "divide": on_counts(m),
        "the best of four starts": on_starts(m),
        "a secret random number": on_words(m, draw(ROWS), "x"),
        "a row by its weight": on_weights(m),
        "the rows of the largest scores": on_scores(m),
        "the nearest centroid of each row": on_squared_distances(m),
        **{name: case_of(m) for name, case_of in CLUSTER_CASES.items()},
    }.items()
} | {
    "minimum of 3, M = 2": on_distances(2, 3, Argmin(compare_bits=16)),
    "minimum of 2 by pairs, M = 2": on_distances(2, 2, Argmin(compare_bits=16, method="pairs")),
    "truncate by much, M = 2": on_words(2, truncate(Truncation("x", 40)), "x"),
}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


@every_case
def test_messages_are_uniform_alone_and_together_and_do_not_depend_on_the_secret(case: Case) -> None:
    (public, own), (other, other_own) = (record(case, secret) for secret in (0, 1))
    assert not_uniform(public) == []
    assert not_uniform(other) == []
    assert related(public, own) == []
    assert related(other, other_own) == []
    assert [
        f"{stage} {what}"
        for stage, arrays in public.items()
        for what, values in arrays.items()
        if two_samples(values[:, :SAMPLE], other[stage][what][:, :SAMPLE]) > LIMIT
    ] == []


def test_every_message_is_recorded() -> None:
    for case in CASES.values():
        public, _ = record(case, 0, runs=1, rows=64)
        assert list(public) == [stage.name for stage in case.protocol.stages()]
        for arrays in public.values():
            senders = {what[0] for what in arrays if "→" in what}
            assert senders == set("012"[: case.parties])


FAIR_RUNS = 60


@pytest.mark.parametrize(
    ("name", "rows"),
    [("sign of 64 bits", 1), ("sign with dropped bits", 9), ("inject", 1), ("inject", 9), ("b2a", 1), ("b2a", 9),
     ("minimum of 3", 3), ("truncate", 3)],
)  # fmt: skip
def test_every_bit_is_fair_at_its_place_padding_included(name: str, rows: int) -> None:
    """Few rows, so most of a packed byte is padding. Seven deviations: passed with probability below 10^-11."""
    public, _ = record(CASES[f"{name}, M = 2"], 0, FAIR_RUNS, rows)
    for stage, arrays in public.items():
        for what, values in arrays.items():
            ones = np.unpackbits(np.ascontiguousarray(values).view(np.uint8), axis=1).sum(axis=0, dtype=int)
            assert np.abs(ones - FAIR_RUNS / 2).max() < 7 * FAIR_RUNS**0.5 / 2, (stage, what)


# the statistics detect protocols that are wrong, each by the test that should detect it
def broken(send: Callable[[Party, Arrays, Randomness], Arrays]) -> Case:
    """Make a round that sends what it should not, and ignores what it receives."""

    def send_wrong(party: Party, state: Arrays, randomness: Randomness) -> Sent:
        return Sent(state, send(party, state, randomness))

    def ignore(party: Party, state: Arrays, inbox: Inbox, randomness: Randomness) -> Arrays:
        del party, inbox, randomness
        return state

    return on_words(2, of_rounds("broken", Round("r", send_wrong, ignore, "too much")), "x", "y")


def without_a_mask(party: Party, state: Arrays, randomness: Randomness) -> Arrays:
    kind = Mul(party.count, state["x"].shape)
    return {"e": state["x"] - randomness.correlated(kind, "a"), "f": state["y"]}


def with_one_mask(party: Party, state: Arrays, randomness: Randomness) -> Arrays:
    kind = Mul(party.count, state["x"].shape)
    return {"e": state["x"] - randomness.correlated(kind, "a"), "f": state["y"] - randomness.correlated(kind, "a")}


def with_half_a_mask(party: Party, state: Arrays, randomness: Randomness) -> Arrays:
    """Mask the second half of the values with the masks of the first."""
    x = state["x"].reshape(2, -1)
    return {"e": x - randomness.correlated(Mul(party.count, x.shape[1:]), "a")}


def with_a_narrow_mask(party: Party, state: Arrays, randomness: Randomness) -> Arrays:
    """Mask all but the top byte."""
    kind = Mul(party.count, state["x"].shape)
    return {"e": state["x"] ^ (randomness.correlated(kind, "a") >> np.uint64(8))}


def with_the_product_of_the_masks(party: Party, state: Arrays, randomness: Randomness) -> Arrays:
    """Mask by XOR with bits that are mostly zero."""
    kind = BitProducts(party.count, state["x"].size, (ProductGroups(1, 1, ((((0,),),),)),))
    return {"e": state["x"] ^ (randomness.correlated(kind, "mask")[0] & randomness.correlated(kind, "sums")[0])}


def test_a_missing_narrow_or_biased_mask_is_detected() -> None:
    public, _ = record(broken(without_a_mask), 1)
    detected = not_uniform(public)
    assert "broken.00.r 0→all: f" in detected
    assert not any("all: e" in each for each in detected)
    for send in (with_a_narrow_mask, with_the_product_of_the_masks):
        assert "broken.00.r 1→all: e" in not_uniform(record(broken(send), 1)[0])


def test_a_mask_used_twice_is_detected_though_each_message_is_uniform() -> None:
    public, own = record(broken(with_one_mask), 1)
    assert not_uniform(public) == []
    assert "broken.00.r 0→all: e and 0→all: f" in related(public, own)
    public, own = record(broken(with_half_a_mask), 1)
    assert "broken.00.r 0→all: e: halves" in related(public, own)


def test_a_mask_used_twice_on_shares_of_products_is_detected() -> None:
    """Shares of products are uniform already: only the opened values show that one mask was used twice."""

    def reuse(party: Party, state: Arrays, randomness: Randomness) -> Sent:
        return Sent(state, with_one_mask(party, state, randomness))

    def ignore(party: Party, state: Arrays, inbox: Inbox, randomness: Randomness) -> Arrays:
        del party, inbox, randomness
        return state

    products = multiply("x", "y", "z") + multiply("x", "y", "x") + multiply("z", "y", "y")
    public, own = record(
        on_words(2, (products + of_rounds("r", Round("r", reuse, ignore, "e, f"))).named("p"), "x", "y"), 1
    )
    assert not_uniform(public) == []
    assert "p.03.r opened e (add) and opened f (add)" in related(public, own)
    assert "p.03.r 0→all: e and 0→all: f" not in related(public, own)


def test_an_opened_product_is_detected_though_its_shares_are_uniform() -> None:
    public, _ = record(on_words(2, (MULTIPLY + OPEN).named("p"), "x", "y"), 1)
    detected = not_uniform(public)
    assert "p.01.reveal opened x (add)" in detected
    assert all(each.startswith("p.01.reveal opened x") for each in detected)


def test_secrets_that_change_a_histogram_are_detected() -> None:
    one, other = (record(broken(without_a_mask), secret)[0]["broken.00.r"]["0→all: f"] for secret in (0, 1))
    assert two_samples(one, other) > LIMIT


def test_a_mask_that_the_recipient_knows_is_detected() -> None:
    """All parties have one seed, so each can remove the others' masks."""
    case = CASES["sign of 64 bits, M = 3"]
    begin = case.begin(0, ROWS)
    runs = [InStepRun(case.protocol, begin, seeds_of(run, 1) * 3).run()["sign.00.addends0"] for run in range(RUNS)]
    sent = np.stack([np.asarray(run.sent[0, None, "m"]).reshape(-1) for run in runs])
    known = np.stack([run.randomness[1]["bits.mask"].reshape(-1) for run in runs])
    assert related({"s": {"0→all: m": sent}}, {"s": {"1: bits.mask": known}}) == ["s 1: bits.mask and 0→all: m"]


@every_case
def test_every_array_that_is_sent_has_its_own_mask(case: Case) -> None:
    used = masks_of(case)
    assert used
    assert misused_masks(used) == []


@pytest.mark.parametrize(
    "send",
    [without_a_mask, with_one_mask, with_half_a_mask, with_the_product_of_the_masks],
    ids=lambda f: f.__name__,
)
def test_missing_reused_and_broadcast_masks_are_detected(send: Callable[..., Arrays]) -> None:
    assert misused_masks(masks_of(broken(send)))


FIXED = (OPERAND, PROFILE_OPERAND)
"""The stages of masks that stay with a matrix."""
Position = tuple[int, int, int, str]
"""Party, iteration, shard, stage."""


class RecordedDraws:
    """Every expansion of a seed: the shapes that were drawn, and the positions in the run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.drawn: dict[tuple[bytes, Address, str], set[tuple[tuple[int, ...], str]]] = {}
        self.positions: dict[tuple[bytes, Address, str], set[Position]] = {}
        self.current: InStepRun | None = None
        monkeypatch.setattr(prg, "uniform", partial(self._record, prg.uniform))

    def _record(
        self,
        uniform: Callable[..., Array],
        seed: bytes,
        address: Address,
        label: str,
        shape: Any,
        dtype: Any = ring.DTYPE,
    ) -> Array:
        if self.current is None:
            return uniform(seed, address, label, shape, dtype)
        self.drawn.setdefault((seed, address, label), set()).add((shape, np.dtype(dtype).str))
        party, stage = self.current.at
        if party >= 0:
            position = (party, self.current.iteration, self.current.shard, stage)
            self.positions.setdefault((seed, address, label), set()).add(position)
        return uniform(seed, address, label, shape, dtype)

    def run(self, case: Case, protocol: Protocol, iterations: int = 2, shards: int = 2) -> None:
        """Run all iterations and shards with the same seeds."""
        for iteration in range(iterations):
            for shard in range(shards):
                seeds = seeds_of("addresses", case.parties)
                self.current = InStepRun(protocol, case.begin(1, 64), seeds, iteration, shard)
                self.current.run()
        self.current = None

    def reused(self) -> list[str]:
        """List randomness that was expanded in two shapes, or at two positions. A fixed operand's mask may be."""
        wrong = [f"{at} {label}: shapes {shapes}" for (_, at, label), shapes in self.drawn.items() if len(shapes) > 1]
        for (_, address, label), positions in self.positions.items():
            fixed = address.stage in FIXED
            distinct = len({(party, shard) for party, _, shard, _ in positions}) if fixed else len(positions)
            if distinct > 1:
                wrong.append(f"{address} {label}: positions {sorted(positions)}")
        return wrong


@every_case
def test_no_address_is_used_twice(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cover iterations, shards and stages; and the dealer expands the same shapes as the parties."""
    draws = RecordedDraws(monkeypatch)
    draws.run(case, case.protocol)
    assert len({position for positions in draws.positions.values() for position in positions}) >= 4 * (case.parties - 1)
    assert draws.reused() == []


@every_case
def test_a_protocol_that_runs_twice_in_a_row_draws_new_randomness(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = case.begin(1, 64)

    def reset(party: Party, state: Arrays) -> Arrays:
        del state
        return begin[party.index]

    twice, once = RecordedDraws(monkeypatch), RecordedDraws(monkeypatch)
    once.run(case, case.protocol, 1, 1)
    twice.run(case, case.protocol.then(reset) + case.protocol, 1, 1)
    assert twice.reused() == []
    drawn, drawn_once = (
        [label for _, address, label in each.positions if address.stage not in FIXED] for each in (twice, once)
    )
    assert sorted(drawn) == sorted(drawn_once * 2)


def test_only_the_mask_of_a_fixed_operand_is_used_in_all_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = RecordedDraws(monkeypatch)
    draws.run(CASES["cross, M = 3"], CASES["cross, M = 3"].protocol)
    lasting = {
        (address.iteration, address.stage, label) for _, address, label in draws.positions if address.stage == "operand"
    }
    assert lasting == {(0, "operand", f"matmul.{i}.{j}.u") for i in range(3) for j in range(3) if i != j}
    for (_, address, label), positions in draws.positions.items():
        if address.stage == "operand":
            assert {party for party, *_ in positions} == {int(label.split(".")[1])}
            assert {(i, stage) for _, i, _, stage in positions} == {(0, "cross.00.operand"), (1, "cross.00.operand")}


def test_two_iterations_at_one_address_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = RecordedDraws(monkeypatch)
    case = on_words(2, multiply("x", "y", "z"), "x", "y")
    same = Address("store.0", 0, "multiply.00.multiply", 0)
    monkeypatch.setattr(InMemoryStoreRun, "at", lambda self, address: same)  # noqa: ARG005
    draws.run(case, case.protocol, iterations=2, shards=1)
    assert any("positions" in each for each in draws.reused())
