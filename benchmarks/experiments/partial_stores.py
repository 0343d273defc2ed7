"""Triple stores for parts of a job, really made by two parties without a dealer: what does a step cost offline?

Both parties run `veilmeans offline` as a function, in a process each, over mutual TLS with the link shaped; only the
steps for which correlations are made are fewer. Seconds are the slower party's, from the opened session to the end of
the handshake's farewell, without the start of Python; bytes are all messages, the set-up of OT included.
"""

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from unittest import mock

from benchmarks.kmeans_runs import PARTIES, Shape, shape_links, write_configurations
from veilmeans.io.storage.run_report import bytes_sent
from veilmeans.pipelines import offline
from veilmeans.pipelines.session.kmeans_from_config import store_jobs
from veilmeans.schemas.config import load_config
from veilmeans.transforms.offline.traced_job import JobStep, TracedJob

OPERAND = "operand"
Costs = dict[str, float]
Select = Callable[[TracedJob], TracedJob]
"""The part of a job for which a store is made; it is pickled."""


def costs_of_phase(shape: Shape, phase: str) -> Costs:
    """The costs of S1, S2 or S3, as if the store had nothing else."""
    return _costs(shape, partial(steps_of_phase, phase))


def costs_of_distance(shape: Shape) -> Costs:
    """The costs of the distance step's matrix triples."""
    return _costs(shape, distance_steps)


def steps_of_phase(phase: str, job: TracedJob) -> TracedJob:
    return _only(job, lambda step: step.phase == phase or (phase == "S1" and step.name == OPERAND))


def with_operand(steps: Sequence[JobStep]) -> list[JobStep]:
    """The steps with X − U, sent once before the first iteration, counted to S1, as the paper does."""
    return [replace(step, phase="S1") if step.name == OPERAND else step for step in steps]


def distance_steps(job: TracedJob) -> TracedJob:
    return _only(job, lambda step: step.name in (OPERAND, "distance"))


def make_stores(folder: Path, select: Select) -> Costs:
    """Make both parties' stores below a folder with their configurations; return the costs."""
    context = get_context("spawn")
    processes = [context.Process(target=_make_store, args=(folder, party, select)) for party in PARTIES]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        if process.exitcode:
            raise RuntimeError("a party could not make its part of a triple store")
    made = [json.loads(_result(folder, party).read_text()) for party in PARTIES]
    sent = sum(each["bytes"] for each in made)
    return {"offline_mb": sent / 1e6, "offline_s": max(each["seconds"] for each in made)}


def _costs(shape: Shape, select: Select) -> Costs:
    with tempfile.TemporaryDirectory(prefix="veilmeans-bench-") as name:
        by_ot = replace(shape, provider="ot")
        write_configurations(Path(name), by_ot)
        shape_links(Path(name), by_ot)
        return make_stores(Path(name), select)


def _make_store(folder: Path, party: str, select: Select) -> None:
    """Be one party, for the selected steps."""
    config = load_config(folder / party / "config.yaml")
    start = time.perf_counter()
    with mock.patch.object(offline, "store_jobs", lambda *given: select(store_jobs(*given).of(0))):
        offline.run_offline(config)
    seconds = time.perf_counter() - start
    report = json.loads(config.offline().run_folder.report.read_text())
    _result(folder, party).write_text(json.dumps({"seconds": seconds, "bytes": bytes_sent(report["stages"])}))


def _result(folder: Path, party: str) -> Path:
    return folder / f"{party}-offline.json"


def _only(job: TracedJob, wanted: Callable[[JobStep], bool]) -> TracedJob:
    return replace(job, steps=tuple(step for step in job.steps if wanted(step)))
