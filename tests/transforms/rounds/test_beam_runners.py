"""The Beam executor on Flink and Prism: the same shares as the bare one, a real barrier, errors that come through."""

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from support.beam_runners import RUNNERS, BeamRunner, RunnerError, need_tools, read_all, started_runner
from support.chain_party import chain, read_output, write_inputs
from support.chain_rounds import ROUNDS, make_shards
from support.parties import TRIPLES, deal_stores, in_parallel, make_configs, reconstruct, write_config
from veilmeans.schemas.arrays import Arrays
from veilmeans.schemas.config import JobConfig

SHARDS = 16
TESTS = Path(__file__).parents[2]


@pytest.fixture(scope="module", params=RUNNERS)
def runner(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[BeamRunner]]:
    """A runner for each of two parties."""
    folder = tmp_path_factory.mktemp("runner")
    with ExitStack() as stack:
        yield [stack.enter_context(started_runner(request.param, folder / str(i))) for i in range(2)]


def test_shares_equal_the_bare_executors_bit_for_bit(tmp_path: Path, runner: list[BeamRunner]) -> None:
    held, expected = make_shards(2, SHARDS, rows=50)
    bare, _ = run_chain(tmp_path, "bare", held, [["--executor=bare"]] * 2)
    beamed, said = run_chain(tmp_path, "beam", held, [[*runner[i].flags, f"--job_name=chain{i}"] for i in range(2)])
    assert all(runner[i].ran(f"chain{i}", said[i]) for i in range(2))
    for shard, value in expected.items():
        np.testing.assert_array_equal(reconstruct(beamed, shard), value)
        for party in range(2):
            np.testing.assert_array_equal(beamed[party][shard]["x"], bare[party][shard]["x"])


def test_no_element_leaves_a_barrier_before_all_bundles_have_reached_it(
    tmp_path: Path, runner: list[BeamRunner]
) -> None:
    journal = tmp_path / "journal"
    pipeline = beam.Pipeline(options=PipelineOptions(runner[0].flags))
    before, after = Note(journal, "before", sleep=0.3), Note(journal, "after")
    entered = pipeline | beam.Create(range(SHARDS)) | beam.Reshuffle() | "Before" >> beam.ParDo(before)
    _ = entered | beam.GroupByKey() | "After" >> beam.ParDo(after)
    pipeline.run().wait_until_finish()
    events = [line.split() for line in journal.read_text().splitlines()]
    times = {stage: [int(ns) for of, _, ns in events if of == stage] for stage in ("before", "after")}
    assert len({bundle for of, bundle, _ in events if of == "before"}) >= 2
    assert len(times["after"]) > SHARDS
    assert max(times["before"]) < min(times["after"])


def test_a_dead_peer_ends_the_run_with_one_sentence_and_its_code(tmp_path: Path, runner: list[BeamRunner]) -> None:
    held, _ = make_shards(2, SHARDS, rows=5)
    configs = make_configs(tmp_path, exchange={"timeout_s": 5}, triples=TRIPLES)
    deal_stores([config.store_folder for config in configs.values()], chain(ROUNDS), held)
    alone = configs["payco"]
    write_inputs(alone, held[0])
    process = start(write_config(alone, tmp_path / "payco.yaml"), *runner[0].flags)
    output = read_all(process)
    said = [line for line in output.splitlines() if line.startswith("error: ")]
    address = alone.peers["shop"].address
    assert process.returncode == 5, output[-3000:]
    assert len(said) == 1
    assert all(part in said[0] for part in ("shop", str(address), "5 s"))
    assert "run again" not in output


def test_missing_tools_are_named_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "java"
    java.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RunnerError) as refusal:
        need_tools()
    assert str(refusal.value).endswith("go, mvn")


def start(file: Path, *flags: str) -> "subprocess.Popen[str]":
    """A party as an interpreter of its own, as a user's would be: runners start workers from it."""
    command = [sys.executable, "-m", "support.chain_party", str(file), "--rounds", str(ROUNDS), *flags]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(TESTS)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


def run_chain(
    folder: Path, executor: str, held: list[dict[int, Arrays]], flags: Sequence[Sequence[str]]
) -> tuple[list[dict[int, Arrays]], list[str]]:
    """Run both parties, each with its flags and its own order of shards: their shares, and what they printed."""
    configs = make_configs(folder / executor, triples=TRIPLES)
    deal_stores([config.store_folder for config in configs.values()], chain(ROUNDS), held)
    copy_seeds(folder, executor, configs)
    processes = []
    for i, (name, config) in enumerate(configs.items()):
        write_inputs(config, held[i])
        file = write_config(config, folder / executor / f"{name}.yaml")
        processes.append(start(file, f"--order={i}", *flags[i]))
    said = in_parallel([partial(read_all, process) for process in processes])
    assert [process.returncode for process in processes] == [0, 0], "\n".join(text[-3000:] for text in said)
    return [read_output(config) for config in configs.values()], said


def copy_seeds(folder: Path, executor: str, configs: dict[str, JobConfig]) -> None:
    """Give both executors' parties the same seeds and triples, so that shares must be equal, not only values."""
    if executor != "bare":
        for name, config in configs.items():
            config.seed.write_bytes((folder / "bare" / name / f"{name}.seed").read_bytes())
            bare = folder / "bare" / name / "storage/triples/store"
            copied = [bare / "seeds/0", bare / "files.key", bare / "manifest.json", *bare.rglob("*.arrow")]
            assert len(copied) == (3 + len(list(config.storage.glob("triples/store/corrections/0/0/*.arrow"))))
            for file in copied:
                (config.store_folder.path / file.relative_to(bare)).write_bytes(file.read_bytes())


class Note(beam.DoFn):
    """Write down when each element was processed and each bundle finished; elements and bundles take `sleep` s."""

    def __init__(self, journal: Path, stage: str, sleep: float = 0.0) -> None:
        self.journal, self.stage, self.sleep = journal, stage, sleep

    def start_bundle(self) -> None:
        self.bundle = uuid.uuid4().hex

    def process(self, element: int | tuple[int, Iterable[int]]) -> Iterator[tuple[int, int]]:
        self._write()
        shard = element if isinstance(element, int) else element[0]
        yield shard, shard

    def finish_bundle(self) -> None:
        self._write()

    def _write(self) -> None:
        time.sleep(self.sleep)
        with self.journal.open("a") as file:
            file.write(f"{self.stage} {self.bundle} {time.monotonic_ns()}\n")
