"""The formulas in docs/protocol.md and docs/kmeans.md are read there and compared with what the protocols send."""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from math import ceil, log2
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.kmeans_in_memory import horizontal, kmeans_for, vertical
from support.parties import NAMES
from veilmeans.schemas.kmeans_config import NormaliseConfig
from veilmeans.schemas.layout import Layout, ShardShape
from veilmeans.schemas.party import Party
from veilmeans.transforms.kmeans.joint_statistics import MOMENTS, extremes
from veilmeans.transforms.kmeans.open_results import RevealPolicy, open_assignments, open_centroids
from veilmeans.transforms.kmeans.steps import KMeansSteps, step_of
from veilmeans.transforms.offline.dealer import corrections_for
from veilmeans.transforms.offline.requirements import Over, StoreRequirements
from veilmeans.transforms.primitives.a2b import Decomposition, a2b
from veilmeans.transforms.primitives.bit_injection import b2a, inject
from veilmeans.transforms.primitives.compare import Comparison, sign
from veilmeans.transforms.primitives.multiply import multiply
from veilmeans.transforms.primitives.truncate import Truncation, truncate, truncate_exactly
from veilmeans.transforms.rounds.protocol import Protocol
from veilmeans.transforms.rounds.trace import ShapeRecorder, StageTrace, trace

DOCS = Path(__file__).parents[2] / "docs"
SIGNS = {"·": "*", "−": "-", " = ": " == ", "[": "int(", "]": ")", "⌈": "ceil(", "⌉": ")", "^": "**"}
WORDS = (8, 16, 32, 64)
Formula = Callable[..., float]
Cost = tuple[float, float]
"""Rounds, and bytes that one party sends to all others."""


def formula(text: str, **names: Any) -> float:
    """The value of a formula as it stands on a page."""
    for sign_, code in SIGNS.items():
        text = text.replace(sign_, code)
    return float(eval(text, {"__builtins__": {}, "int": int, "ceil": ceil}, names))


@cache
def rows(page: str) -> dict[str, list[str]]:
    """First cell -> the other cells that are code, of every row of a page's tables that has such cells."""
    lines = [line.strip("| ").split(" | ") for line in (DOCS / page).read_text().splitlines() if line.startswith("|")]
    return {re.sub("`", "", first): [c.strip("`") for c in cells if c.startswith("`")] for first, *cells in lines}


def words(parties: int) -> dict[str, Any]:
    """The functions of docs/protocol.md, for so many parties."""
    known: dict[str, Any] = {"M": parties, "lg": log2, "pad": lambda x: 8 * ceil(x / 8), "cs": 0}
    left = parties
    while left > 2:
        left, known["cs"] = left // 3 * 2 + left % 3, known["cs"] + 1

    def defined(text: str) -> Formula:
        return lambda w: formula(text, w=w, **known)

    for name in ("pre(w)", "cmp(w)", "cmp_rounds(w)"):
        known[name.removesuffix("(w)")] = defined(rows("protocol.md")[name][0])
    return known


def sent(stages: Sequence[StageTrace], party: int) -> Cost:
    """The rounds in which anybody sends anything, and the bytes that `party` does."""
    return sum(1 for stage in stages if any(stage.sent)), sum(stage.sent[party] for stage in stages)


def cost(row: str, **names: Any) -> Cost:
    """A row of docs/kmeans.md."""
    *_, rounds, size = rows("kmeans.md")[row]
    return formula(rounds, **names), formula(size, **names)


def levels(nodes: int) -> Iterator[dict[str, int]]:
    """q, h and b of every level of a tree."""
    groups = [1] * nodes
    while len(groups) > 1:
        pairs = len(groups) // 2
        below = sum(groups[: 2 * pairs]) if max(groups) > 1 else 0
        yield {"q": len(groups), "h": pairs, "b": below}
        groups = [sum(groups[2 * i : 2 * i + 2]) for i in range(pairs)] + groups[2 * pairs :]


def added(costs: Sequence[Cost]) -> Cost:
    return sum(rounds for rounds, _ in costs), sum(size for _, size in costs)


def others(parties: int, me: int) -> list[int]:
    return [i for i in range(parties) if i != me]


VALUES = 64
SHAPES = {"x": ((VALUES,), "uint64"), "y": ((VALUES,), "uint64"), "b": ((VALUES // 8,), "uint8")}


def arithmetic(parties: int, w: int) -> dict[str, Protocol]:
    """What the table of docs/protocol.md lists, on words of w bits where there is a choice."""
    return {
        "SMUL": multiply("x", "y", "z"),
        "CMP": sign(Comparison("x", "s", compare_bits=w), parties),
        "A2B": a2b(Decomposition("x", "s"), parties),
        "B2A": Protocol("b2a", (b2a("b", "x", "z"),)),
        "MUX, bit injection": Protocol("mux", (inject("b", "x", "z"),)),
        "truncation, off by at most one in the last place": truncate(Truncation("x", 20)),
        "truncation, rounded exactly": truncate_exactly(Truncation("x", 40 if w == 64 else 20)),
    }


@pytest.mark.parametrize("parties", [2, 3, 4])
@pytest.mark.parametrize("w", WORDS)
def test_arithmetic_costs_what_the_page_says(w: int, parties: int) -> None:
    names = {**words(parties), "w": w, "u": max(32, w)}
    for name, protocol in arithmetic(parties, w).items():
        *_, rounds, size = rows("protocol.md")[name]
        said = formula(rounds, **names), VALUES * (parties - 1) * formula(size, **names)
        assert sent(trace(protocol, [SHAPES] * parties), 0) == said, name


def letters(kmeans: KMeansSteps) -> dict[str, Any]:
    """What is the same in all shards."""
    m, magnitude = kmeans.work.count_bits, kmeans.work.magnitude
    ciphers = kmeans.engines.cipher
    return {
        **words(kmeans.layout.parties),
        "k": kmeans.k,
        "w": Comparison("", "", kmeans.tree.compare_bits, kmeans.tree.drop).width,
        "m": m,
        "v": next(w for w in WORDS if w >= m + 2),
        "s": int(m + magnitude > 30),
        "u": 32 if min(30 + m, 60 - magnitude) <= 32 else 64,
        "c": ciphers.size if ciphers else 0,
    }


def product(step: str, kmeans: KMeansSteps, me: int, block: ShardShape, same: dict[str, Any]) -> Cost:
    """The round of a cross product, which some owners may do with one engine and some with the other."""
    engines = getattr(kmeans.engines, step)
    total = 0.0
    rounds = {0.0}
    for peer in others(len(engines), me):
        names = {**same, "n": block.rows, "d_i": block.widths[peer], "d_j": block.widths[me]}
        # beaver's operand goes to an owner; he's goes to an owner in the update, and comes from it in the distance
        parts = [f"{step}, beaver"] if engines[peer] is None else [f"{step}, he"] * (step == "update")
        parts += [f"{step}, he"] * (step == "distance" and engines[me] is not None)
        for part in parts:
            names |= packs("i", engines[peer]) | packs("j", engines[me])
            each = cost(part, **names)
            rounds.add(each[0])
            total += each[1]
    return max(rounds), total


def packs(who: str, engine: Any) -> dict[str, int]:
    return {f"p_{who}": engine.packs if engine else 0, f"g_{who}": engine.group if engine else 1}


def assign(kmeans: KMeansSteps, block: ShardShape, same: dict[str, Any]) -> Cost:
    peers = kmeans.layout.parties - 1
    found = added([cost("assign, each level", n=block.rows, **same, **level) for level in levels(kmeans.k)])
    return found[0], peers * found[1]


def over_rows(kmeans: KMeansSteps, me: int, block: ShardShape) -> dict[str, Cost]:
    same, peers = letters(kmeans), kmeans.layout.parties - 1
    b2a = cost("update, B2A", n=block.rows, **same)
    return {
        "operand": _to_all(peers, cost("operand", n=block.rows, d_j=block.widths[me], **same)),
        "distance": product("distance", kmeans, me, block, same),
        "assign": assign(kmeans, block, same),
        "update": added([_to_all(peers, b2a), product("update", kmeans, me, block, same)]),
    }


def _to_all(peers: int, one: Cost) -> Cost:
    return one[0], peers * one[1]


def over_columns(kmeans: KMeansSteps, block: ShardShape) -> dict[str, Cost]:
    """But for ciphertexts."""
    same, peers, (width,) = letters(kmeans), kmeans.layout.parties - 1, block.widths
    return {name: _to_all(peers, cost(name, d=width, **same)) for name in ("norms", "quotient")}


def single(kmeans: KMeansSteps) -> dict[str, Cost]:
    same, peers = letters(kmeans), kmeans.layout.parties - 1
    parts = ["finish, stop bit"] * bool(kmeans.work.threshold) + ["finish, inertia"] * kmeans.work.inertia
    return {
        "reciprocal": _to_all(peers, cost("reciprocal", **same)),
        "finish": _to_all(peers, added([cost(part, **same) for part in parts])),
    }


def traced(plan: StoreRequirements, over: Over, block: ShardShape, party: int) -> dict[str, Cost]:
    stages: dict[str, list[StageTrace]] = {}
    for stage in plan.traces(over, block, 0):
        stages.setdefault(step_of(stage.name), []).append(stage)
    return {step: sent(each, party) for step, each in stages.items()}


def check(kmeans: KMeansSteps) -> StoreRequirements:
    """Every party's bytes and rounds of every stage in one shard of each shape."""
    plan = kmeans.plan()
    for me in range(kmeans.layout.parties):
        for block in set(plan.blocks):
            found, said = traced(plan, Over.ROWS, block, me), over_rows(kmeans, me, block)
            said = {step: each for step, each in said.items() if step in found}
            silent = {step: (0, 0) for step, each in said.items() if not each[1]}
            assert {**found, **{step: (0, found[step][1]) for step in silent}} == {**said, **silent}
        for block in set(plan.columns):
            columns = traced(plan, Over.COLUMNS, block, me)
            assert {step: columns[step] for step in ("norms", "quotient")} == over_columns(kmeans, block)
        assert traced(plan, Over.ONE, ShardShape(plan.rows), me) == single(kmeans)
    return plan


LAYOUTS: dict[str, Layout] = {
    "vertical, M = 2": vertical(21, (2, 3), 16),
    "vertical, M = 3": vertical(21, (2, 3, 1), 16),
    "horizontal, M = 2": horizontal((13, 9), 3, 8),
    "horizontal, M = 3": horizontal((13, 9, 1), 3, 8),
}


@pytest.mark.parametrize("k", [1, 2, 3, 5])
@pytest.mark.parametrize("name", LAYOUTS)
def test_stages_cost_what_the_page_says(name: str, k: int) -> None:
    check(kmeans_for(LAYOUTS[name], k, tol=1e-4))


@pytest.mark.parametrize("rows_", [3, 60, 20_000, 1_000_000])
def test_words_grow_with_the_rows(rows_: int) -> None:
    check(kmeans_for(vertical(rows_, (1, 1), 4096), 2, tol=0.0, inertia=False))


@pytest.mark.parametrize("bound", [16.0, 300.0])
def test_words_depend_on_the_interval(bound: float) -> None:
    normalise = NormaliseConfig(method="zscore", bound=bound)
    check(kmeans_for(LAYOUTS["vertical, M = 2"], 5, normalise, tol=0.0, drop_bits=0))


@pytest.mark.parametrize("k", [1, 2, 5, 9])
@pytest.mark.parametrize("name", ["vertical, M = 2", "horizontal, M = 3"])
def test_ciphertexts_cost_what_the_page_says(name: str, k: int) -> None:
    kmeans = kmeans_for(LAYOUTS[name], k, products="he")
    plan, same, layout = check(kmeans), letters(kmeans), kmeans.layout
    for me in range(layout.parties):
        for block in set(plan.columns):
            cut = slice(block.start, block.start + block.widths[0])
            own = [layout.own_within(i, cut) for i in range(layout.parties)]
            widths = [part.stop - part.start for part in own]
            names = {**same, "d_j": widths[me], **packs("j", kmeans.engines.update[me])}
            peers = others(layout.parties, me)
            encrypt = [
                cost("encrypt, he", d_i=widths[i], **packs("i", kmeans.engines.distance[i]), **same)[1] for i in peers
            ]
            unmask = [cost("unmask, he", **names)[1] for _ in peers]
            found = traced(plan, Over.COLUMNS, block, me)
            assert found["encrypt"] == (1, sum(encrypt))
            assert found.get("unmask", (0, 0)) == (cost("unmask, he", **names)[0], sum(unmask))


@pytest.mark.parametrize("parties", [2, 3, 4, 5])
@pytest.mark.parametrize("d", [1, 3, 8])
def test_statistics_cost_what_the_page_says(parties: int, d: int) -> None:
    names = {**words(parties), "d": d}
    tree = [cost("extremes, each level of M nodes", **names, **level) for level in levels(parties)]
    said = added([*tree, cost("extremes, opening", **names)])
    shapes = [{"x": ((2, d), "uint64")}] * parties
    assert sent(trace(extremes(parties), shapes), 0) == _to_all(parties - 1, said)
    shapes = [{"x": ((5, 2, d), "uint64")}] * parties
    assert sent(trace(MOMENTS, shapes), 0) == _to_all(parties - 1, cost("moments", **names))


def test_openings_cost_what_the_page_says() -> None:
    layout, k, n = vertical(21, (2, 3), 21), 3, 21
    everyone = frozenset({0, 1})
    policy = RevealPolicy(layout, everyone, everyone)
    shard = {"c": np.zeros((k, 3), np.uint8), "rows": np.array([n]), "owner": np.array([2])}
    party, randomness = Party(0, NAMES[:2]), ShapeRecorder()
    message = open_assignments(policy).rounds[0].send(party, shard, randomness).for_peer(1)
    assert (1, message["c"].nbytes) == cost("reveal-assignments", n=n, k=k, **words(2))
    state = {"mu": np.zeros((k, 5), np.uint64), "inertia": np.zeros(1, np.uint64)}
    message = open_centroids(policy).rounds[0].send(party, state, randomness).for_peer(1)
    assert (1, message["mu"].nbytes) == cost("reveal-centres", k=k, e=3)
    assert set(message) == {"mu"}


@pytest.mark.parametrize("k", [2, 3, 5, 10])
def test_a_store_is_as_large_as_the_page_says(k: int) -> None:
    page = (DOCS / "kmeans.md").read_text()
    last, first, each = (found.group(1) for found in re.finditer(r"`(\d+·k[^`]*)`", page.split("The store (")[1]))
    two, three = (bytes_per_row(features, k) for features in ((2, 3), (2, 3, 1)))
    assert two == pytest.approx([formula(first, k=k), formula(last, k=k)], abs=0.5)
    assert three[:2] == [formula(each, k=k, M=3)] * 2


def bytes_per_row(features: Sequence[int], k: int) -> list[float]:
    """Of each party's corrections in an iteration, as they grow with the rows."""
    sizes = []
    for rows_ in (256, 384):
        needs = kmeans_for(vertical(rows_, features, rows_), k, tol=1e-4).plan().needs(0, 1)
        dealt = [corrections_for(party, needs).values() for party in range(len(features))]
        sizes.append([sum(array.nbytes for array in arrays) for arrays in dealt])
    return [(more - less) / 128 for less, more in zip(*sizes, strict=True)]


def test_the_example_is_right() -> None:
    text = " ".join((DOCS / "kmeans.md").read_text().split())
    found = re.search(
        r"has ([\d + ]+) = (\d+) rounds from 16,384 .* about (\d+) bytes a row .*, (\d+) for the update", text
    )
    assert found is not None
    few, many = (kmeans_for(vertical(n, (2, 3), n), 5, tol=1e-4) for n in (1, 16_384))
    steps = ("distance", "assign", "update", "reciprocal", "quotient", "finish")
    rounds = [len(getattr(many, step)) for step in steps]
    assert (rounds, sum(rounds)) == ([int(each) for each in found[1].split("+")], int(found[2]))
    assert sum(len(getattr(few, step)) for step in steps) == sum(rounds) - 4
    block = ShardShape(16_384, (2, 3))
    said = [round(over_rows(many, 0, block)[step][1] / block.rows) for step in ("assign", "update")]
    assert said == [int(found[3]), int(found[4])]
