"""Leaks: nothing that a party receives, keeps or prints reveals more than the reveal policy names.

Real runs, each party a process with its log turned up, that drop nothing. See `support.observed_run`.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.leak_search import CLUSTERS, Evidence, leaks
from support.observed_run import ITERATIONS, ObservedRun, Scenario, income_tables, norms, train_and_keep_everything
from support.parties import NAMES
from support.run_results import keep_messages, opened_labels, received
from support.uniformity import LIMIT, chi_square
from veilmeans.crypto import bits
from veilmeans.io.storage.checkpoints import assignments, centroids
from veilmeans.pipelines.session.kmeans_from_config import kmeans_steps, statistics_method, traced_job
from veilmeans.schemas.arrays import Array, Arrays
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.message import MessageKey
from veilmeans.schemas.run_folder import OPERANDS
from veilmeans.transforms.kmeans.job_trace import trace_job
from veilmeans.transforms.openings.reveal_policy import RevealPolicy

A, B, C = NAMES[:3]
CONTROL = ("handshake", "triples", "checkpoint", "echo", "farewell")
"""Stages whose messages say only that a party takes part, and on which terms."""
SCENARIOS = {
    "vertical, stage by stage": Scenario(
        2,
        True,
        "gateway",
        "stages",
        {},
        {
            "assignments": [A],
            "centroids": [B],
            "inertia": [A],
            "outliers": [B],
            "explanations": [B],
            "contributions": "all",
            "profiles": [A],
        },
        12,
        {"count": 20},
        "k-means++",
    ),
    "vertical, three parties, by files": Scenario(
        3, True, "files", "one_call", {"method": "zscore"}, {"centroids": [C], "columns": "all", "inertia": [B]}, 15
    ),
    "horizontal, by files": Scenario(
        2, False, "files", "stages", {"aggregate": True, "method": "zscore"}, {"assignments": [A, B]}
    ),
    "horizontal, three parties": Scenario(
        3,
        False,
        "gateway",
        "one_call",
        {"aggregate": True},
        {"centroids": [A, B], "scores": [A], "outliers": [A, C], "explanations": [C], "profiles": [B]},
        outliers={"fraction": 0.05, "during_training": True},
        init="k-means++",
    ),
}


PROCESSES = [pytest.param(each, id=name, marks=pytest.mark.processes) for name, each in SCENARIOS.items()]


@pytest.fixture(scope="module", params=PROCESSES)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ObservedRun:
    """A finished run of each scenario."""
    world = request.param.make(tmp_path_factory.mktemp("leaks"))
    train_and_keep_everything(world)
    return ObservedRun(request.param, world)


ITERATIONS_OF: dict[str, Sequence[int]] = {
    "once": (0,),
    "seed": range(1 - CLUSTERS, 0),
    "iteration": range(ITERATIONS),
    "later": range(1, ITERATIONS),
    "last": (ITERATIONS,),
}
"""In which iterations a step has messages, by when it runs."""


# Searching everything that a party has.
def test_a_party_has_nothing_hidden_but_what_the_policy_names(run: ObservedRun) -> None:
    for party in run.parties:
        hits = leaks(run.evidence(party), run.secrets(party))
        allowed = [each for each in hits if any(re.search(place, each) for place in run.allowed_places(party))]
        assert [each for each in hits if each not in allowed] == []
        labels = [each for each in allowed if "labels" in each and "/opened-scores/" not in each]  # those are few ones
        assert bool(labels) == run.scenario.may_know(party, "assignments")


def test_everything_that_was_ever_there_is_searched(run: ObservedRun) -> None:
    """Messages of every round of every shard and iteration; shares, states, log and report."""
    job = traced_job(run.world[A])
    due = {
        (iteration, stage.name, shard)
        for step in job.steps
        for iteration in ITERATIONS_OF[step.when]
        for shard, shape in enumerate(job.shapes(step.over))
        for stage in step.stages[shape]
    }
    for party, config in run.world.parties.items():
        keys = [key for key, _ in received(config)]
        for peer in config.online().peers:
            sent = [key.address for key in keys if key.sender == peer]
            assert {(each.iteration, each.stage, each.shard) for each in sent} >= due
        folder = config.run_folder
        expected = [folder.checkpoint(i) for i in range(ITERATIONS + 1)]
        columns = range(len(job.column_shapes))
        expected += [folder.shard(centroids(i), c) for i in range(ITERATIONS + 1) for c in columns]
        expected += [folder.shard(assignments(i + 1), 0) for i in range(ITERATIONS + 1)]
        expected += [folder.shard(OPERANDS, 0), folder.report, run.world.folder / party / "config.yaml"]
        files = dict(run.evidence(party).files)
        assert {str(file.relative_to(run.world.folder)) for file in expected} <= files.keys()
        assert any("/scratch/" in where for where in files) == (run.scenario.rounds == "stages")
        if run.scenario.rounds == "stages":
            assert b"state cache" in files[f"{party}/log"]  # Beam's own words: the log is turned up
        names = {where.rpartition(": ")[2] for where, _ in run.evidence(party).arrays}
        assert {"mu", "n", "x2", "stop", "c", "e", "values"} <= names


PLANTED: dict[str, Callable[[ObservedRun], Array | bytes]] = {
    "a value": lambda run: run.values(B)[7:8, 0],
    "a value less another mask": lambda run: -run.values(B)[9:10],
    "twice a value": lambda run: run.values(B)[3:4] * np.uint64(2),
    "a centroid": lambda run: np.append(np.zeros(5, np.uint64), run.opened("mu", 1)[0, 0]),
    "the last centroids": lambda run: run.opened("mu", ITERATIONS),
    "a norm": lambda run: norms(run.opened("mu", 1))[:1],
    "counts": lambda run: np.bincount(np.concatenate(run.labels()[0])).astype(np.uint64),
    "an opened count": lambda run: run.search_values(ITERATIONS)["counts"][-1:],
    "a threshold": lambda run: run.search_values(ITERATIONS)["threshold"],
    "a score": lambda run: run.scores(ITERATIONS)[3:4],
    "a score in a log": lambda run: f"={int(run.scores(ITERATIONS)[3])};".encode(),
    "assignments": lambda run: run.labels()[1][0].astype(np.int32),
    "assignments as bits": lambda run: bits.pack_rows((run.labels()[0][1] == 0)[None, :]),
    "one-hot rows": lambda run: (run.labels()[0][1] == np.arange(CLUSTERS)[:, None]).astype(np.uint64),
    "a distance in a file": lambda run: b"???" + run.distances()[0][5:6].tobytes(),
    "a number in a file": lambda run: b"-" + run.raw(B)[4:5, 0].tobytes(),
    "a number in a log": lambda run: f"row 3 is {run.raw(B)[3, 0]:.11g}, strange".encode(),
    "a normalised number in a log": lambda run: f"[{run.values(B).view(np.int64)[3, 0] / 2**20}]".encode(),
    "a distance in a log": lambda run: f"={int(run.distances()[1].view(np.int64)[3])}*".encode(),
    "a seed": lambda run: b"00" + run.world[B].seed.read_bytes(),
    "a key in hexadecimal": lambda run: run.world[B].key.read_bytes().hex().encode(),
}


@pytest.mark.parametrize("what", PLANTED)
def test_the_search_finds_a_planted_secret(run: ObservedRun, what: str) -> None:
    evidence = Evidence([], []).having("planted.log", PLANTED[what](run))
    assert any(each.startswith("planted") for each in leaks(evidence, run.secrets(A)))


def test_no_party_prints_keeps_or_sends_its_own_keys(run: ObservedRun) -> None:
    for party, config in run.world.parties.items():
        secret_files = [f"{party}.key$", f"{party}.seed$", "store/seeds/0$", "store/files.key$"]
        evidence = run.evidence(party).without(*secret_files)
        sent = [each for peer in config.online().peers for each in run.evidence(peer).files]
        assert not [where for where, data in (*evidence.files, *sent) for key in run.keys(party) if key in data]


def test_all_parties_but_one_together_have_nothing_of_the_last(run: ObservedRun) -> None:
    """Any two of three: search what the shares in their files add up to, by sum and by XOR."""
    for pool in combinations(run.parties, len(run.parties) - 1):
        if len(pool) < 2:
            continue
        shares = [_own_shares(run.evidence(party), party) for party in pool]
        places = set(shares[0]).intersection(*shares[1:])
        assert len(places) > 15
        sums = [(place, reduce(np.add, [each[place] for each in shares])) for place in places]
        sums += [(place, reduce(np.bitwise_xor, [each[place] for each in shares])) for place in places]
        hits = leaks(Evidence(sums, []), run.secrets(*pool))
        assert [each for each in hits if "opened" not in each] == []


def _own_shares(evidence: Evidence, party: str) -> dict[str, Array]:
    """The arrays of a party's run, by a name that is the same at other parties."""
    own = f"{party}/storage/"
    shares = [(where.removeprefix(own), array) for where, array in evidence.arrays if where.startswith(own)]
    return {
        f"{where} {array.shape}": array
        for where, array in shares
        if where.startswith(("runs/", "scratch/")) and array.dtype.kind == "u"
    }


# Masks.
Messages = list[tuple[MessageKey, str, Array]]


def masked(config: JobConfig) -> Messages:
    """Every array that a party received and that must be uniform: all but what everyone may know."""
    return [
        (key, name, array)
        for key, arrays in received(config)
        for name, array in arrays.items()
        if key.address.stage not in CONTROL and name not in ("shift", "factor", "names")
    ]


def opens_public_value(stage: str) -> bool:
    """Return whether the shares in a stage's messages add up to something that is meant to be known."""
    return stage.endswith(
        (
            *(".stop", ".reveal", ".show", ".assignments", ".scores", ".centroids"),
            *(".explanations", ".explained", ".profiles"),
        )
    )


def test_every_received_array_is_uniform(run: ObservedRun) -> None:
    """χ² of the bytes of each kind of array, over shards and iterations; where they are few, the number of ones."""
    for config in run.world.parties.values():
        kinds: dict[tuple[str, str, str], list[Array]] = {}
        for key, name, array in masked(config):
            if key.address.stage.endswith(".stop") and name != "commit.nonce":
                assert array.shape == (1,)
                assert array[0] in (0, 1)
            else:
                kinds.setdefault((key.sender, key.address.stage, name), []).append(array.reshape(-1))
        assert len(kinds) > 30
        uneven = [kind for kind, arrays in kinds.items() if not is_uniform(np.concatenate(arrays))]
        assert uneven == []


def is_uniform(array: Array) -> bool:
    """Return whether ones and bytes are evenly distributed.

    Uniform data exceed seven deviations with probability below 10^-11, and LIMIT with 2·10^-13.
    """
    raw = array.view(np.uint8)
    ones, count = int(np.unpackbits(raw).sum(dtype=int)), raw.size * 8
    if abs(ones - count / 2) >= 7 * count**0.5 / 2:
        return False
    return raw.size < 2560 or chi_square(raw) < LIMIT


def test_masked_values_that_are_opened_are_uniform_and_no_secret(run: ObservedRun) -> None:
    """All shares of a masked value together: the value less its mask, not the value."""
    shares: dict[tuple[Any, str], dict[str, Array]] = {}
    for config in run.world.parties.values():
        for key, name, array in masked(config):
            if not opens_public_value(key.address.stage):
                shares.setdefault((key.address, name), {})[key.sender] = array
    complete = {where: list(each.values()) for where, each in shares.items() if len(each) == len(run.parties)}
    sums = [
        (f"{address.stage} {name}", reduce(operation, arrays))
        for (address, name), arrays in complete.items()
        if len({array.shape for array in arrays}) == 1
        for operation in (np.add, np.bitwise_xor)
    ]
    assert len(sums) > 100
    assert leaks(Evidence(sums, []), run.secrets(A)) == []
    added = [array for _, array in sums[::2] if array.dtype == np.uint64]
    assert count_close_words(added) == 0  # nor is any mask used for two values
    kinds: dict[str, list[Array]] = {}
    for where, array in sums:
        kinds.setdefault(where, []).append(array.reshape(-1))
    assert [where for where, arrays in kinds.items() if not is_uniform(np.concatenate(arrays))] == []


def test_no_mask_is_used_twice(run: ObservedRun) -> None:
    """No eight bytes occur twice, and no two words are as close as two values under one mask would be."""
    for config in run.world.parties.values():
        arrays = masked(config)
        assert repeated_words(arrays) == []
        assert count_close_words([array for _, _, array in arrays if array.dtype == np.uint64]) == 0


def repeated_words(messages: Messages) -> list[str]:
    seen: dict[int, str] = {}
    twice = []
    for key, name, array in messages:
        data = array.tobytes()
        for word in np.frombuffer(data[: len(data) // 8 * 8], np.uint64).tolist():
            here = f"{key} {name}"
            if seen.setdefault(word, here) != here or word in (0, 2**64 - 1):
                twice.append(f"{here} and {seen[word]}")
    return twice


def count_close_words(arrays: Sequence[Array]) -> int:
    """Count words that have another within 2^21; among 10^5 uniform ones, one in a thousand times."""
    words = np.sort(np.concatenate([array.reshape(-1) for array in arrays]))
    return int((np.diff(words) < 1 << 21).sum())


def test_the_search_finds_a_mask_used_twice(run: ObservedRun) -> None:
    messages = masked(run.world[A])
    key, name, array = max(messages, key=lambda each: each[2].size * (each[2].dtype == np.uint64))
    other = replace(key, address=replace(key.address, iteration=9))
    assert repeated_words([*messages, (other, name, array)])
    x = run.values(B)
    difference = np.resize(x - x[::-1], array.shape)
    assert count_close_words([array, array + difference]) > 10


# Lengths, and names of stages.
def lengths_of(arrays: Arrays) -> dict[str, int]:
    """The lengths of a message's arrays but of a signature: in DER it is a byte longer or shorter by chance."""
    return {name: array.nbytes for name, array in arrays.items() if name != "signature"}


@pytest.mark.parametrize("vertical", [True, False])
def test_lengths_of_messages_do_not_depend_on_the_others_data(
    tmp_path: Path, vertical: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run again with other data of the other party, sparse and clustered otherwise: as many bytes, other clusters."""
    keep_messages(monkeypatch)
    normalise = {} if vertical else {"ranges": {f"income_{i}": (0.0, 2e5) for i in range(3)}}
    scenario = Scenario(2, vertical, "gateway", "one_call", normalise, {"assignments": [A], "inertia": [A, B]})
    first = scenario.make(tmp_path / "first")
    second = first.copied(tmp_path / "second")
    table = income_tables(2, vertical)[1]
    emptied = [np.where(np.arange(table.num_rows) % 5, 0.0, column.to_numpy()) for column in table.columns]
    pq.write_table(pa.table(emptied, names=table.column_names), second.data(B))
    lengths = []
    for world in (first, second):
        world.train()
        messages = received(world[A])
        lengths.append({key: lengths_of(arrays) for key, arrays in messages})
    assert lengths[0] == lengths[1]
    assert len(lengths[0]) > 60
    assert not np.array_equal(opened_labels(first.parties)[0], opened_labels(second.parties)[0])


def test_ranges_that_a_party_sets_for_its_own_columns_are_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_messages(monkeypatch)
    world = Scenario(2, True, "gateway", "one_call", {}, {}).make(tmp_path)
    for name, table in zip((A, B), income_tables(2, True), strict=True):
        ranges = dict.fromkeys(table.column_names, (-1234.5678, 234567.891))
        world = world.altered(name, kmeans={"normalise": {"ranges": ranges}})
    world.train()
    for config in world.parties.values():
        messages = b"".join(array.tobytes() for _, arrays in received(config) for array in arrays.values())
        assert [secret for secret in (b"1234.5", b"234567", b"income") if secret in messages] == []


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS.keys())
def test_no_two_stages_of_a_run_have_the_same_name(scenario: Scenario, tmp_path: Path) -> None:
    """A name is part of every address: one name for two stages would be one mask for two values."""
    config = scenario.make(tmp_path)[A]
    steps, everyone = kmeans_steps(config), frozenset(range(scenario.parties))
    scores, outliers = (everyone if found else frozenset() for found in (steps.scores, steps.outliers))
    policy = RevealPolicy(steps.layout, everyone, everyone, inertia=everyone, scores=scores, outliers=outliers)
    job = trace_job(steps, statistics_method(config.required_kmeans), policy)
    names = [stage.name for step in job.steps for stage in next(iter(step.stages.values()))]
    assert len(set(names)) == len(names) > 25
    assert not set(names) & set(CONTROL)
