"""The work of a pipeline's steps, shared: each content once in an option, the same in a worker, and no secrets."""

import base64
import bz2
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.internal import pickler
from apache_beam.options.value_provider import RuntimeValueProvider
from apache_beam.portability.api import beam_runner_api_pb2 as api

from support.parties import make_configs
from veilmeans.io.exchange.connections import run_seed
from veilmeans.schemas.errors import ConfigError
from veilmeans.schemas.shard import Shard
from veilmeans.transforms.primitives.multiply import MULTIPLY
from veilmeans.transforms.rounds import beam_serialisation
from veilmeans.transforms.rounds.beam_rounds import RunHalfRound, RunProtocol, half_rounds
from veilmeans.transforms.rounds.beam_serialisation import WorkOptions, share_work
from veilmeans.transforms.rounds.party_context import PartyContext

ITERATIONS = 5


@pytest.fixture
def context(tmp_path: Path) -> PartyContext:
    return PartyContext(make_configs(tmp_path, kind="files")["payco"], "binding", store_number=0)


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The options of a worker, which knows nothing else."""
    options: dict[str, str] = {}
    monkeypatch.setattr(RuntimeValueProvider, "runtime_options", options)
    monkeypatch.setattr(beam_serialisation, "_contents", {})
    beam_serialisation._left_out.cache_clear()
    yield options
    beam_serialisation._left_out.cache_clear()


def shared(context: PartyContext) -> tuple[list[bytes], str]:
    """Build a pipeline of several iterations; return the work of its graph's steps, and the option."""
    pipeline = beam.Pipeline()
    states = pipeline | beam.Create([]).with_output_types(tuple[int, Shard])
    for iteration in range(ITERATIONS):
        states |= f"Iteration {iteration}" >> RunProtocol(MULTIPLY, replace(context, iteration=iteration))
    share_work(pipeline)
    steps = [
        each for each in pipeline.to_runner_api().components.transforms.values() if "Iteration" in each.unique_name
    ]
    works = [api.ParDoPayload.FromString(each.spec.payload).do_fn.payload for each in steps if "pardo" in each.spec.urn]
    return works, pipeline.options.view_as(WorkOptions).veilmeans_work


def test_a_worker_recalls_from_the_option_what_the_driver_has_shared(
    context: PartyContext, worker: dict[str, str]
) -> None:
    works, worker["veilmeans_work"] = shared(context)
    beam_serialisation._contents.clear()
    recalled = [pickler.loads(work)[0] for work in works]
    assert all(isinstance(each, RunHalfRound) for each in recalled)
    expected = {(iteration, pickle.dumps(half)) for iteration in range(ITERATIONS) for half in half_rounds(MULTIPLY)}
    assert {(each.context.iteration, pickle.dumps(each.half_round)) for each in recalled} == expected
    assert all(each.context == replace(context, iteration=each.context.iteration) for each in recalled)


def test_each_content_is_in_the_option_once_and_steps_are_small(context: PartyContext) -> None:
    works, option = shared(context)
    assert len(works) == ITERATIONS * len(half_rounds(MULTIPLY))
    assert max(map(len, works)) < 300
    contents = pickle.loads(bz2.decompress(base64.b64decode(option)))  # noqa: S301
    assert len(contents) == len(half_rounds(MULTIPLY)) + ITERATIONS + 1  # the last is the configuration
    assert sum(b"JobConfig" in each for each in contents.values()) == 1


def test_an_option_holds_no_secrets(context: PartyContext) -> None:
    _, option = shared(context)
    content = bz2.decompress(base64.b64decode(option))
    config = context.config
    for secret in (config.seed.read_bytes(), config.key.read_bytes(), run_seed(config, context.binding)):
        assert secret not in content


def test_a_worker_without_the_option_says_what_its_runner_must_do(
    context: PartyContext, worker: dict[str, str]
) -> None:
    works, _ = shared(context)
    beam_serialisation._contents.clear()
    assert not worker
    with pytest.raises(ConfigError, match="must pass pipeline options on"):
        pickler.loads(works[0])
