"""The job `veilmeans predict`: assign new rows to the clusters of a trained model, whose centroids stay shares.

prepare, as the model's rows were ─▶ handshake ─▶ claim triples ─▶ shares of the model ─▶ operands, distance, assign ─▶
reveal. A run of its own: start it again after any mishap, and it goes on.
"""

import logging
import time
from functools import partial
from pathlib import Path

import apache_beam as beam

from veilmeans.io.triples import Manifest
from veilmeans.pipelines.model import Model, model_config
from veilmeans.pipelines.party import counters, finished, run_pipeline, seated
from veilmeans.pipelines.prepare import check_command
from veilmeans.pipelines.progress import TrainProgress
from veilmeans.pipelines.report import RunReport, sent
from veilmeans.pipelines.resume import newest_checkpoint
from veilmeans.pipelines.train import Ready, agree, finish, get_ready, take_seat
from veilmeans.pipelines.triples import check_claim
from veilmeans.schemas.config import JobConfig
from veilmeans.transforms.job import Job
from veilmeans.transforms.predict import PredictRows, copy_model, finish_prediction
from veilmeans.transforms.seat import checkpoints, run_seed

log = logging.getLogger(__name__)


def run_predict(config: JobConfig) -> Path:
    """Take part in a prediction; the folder with the results. The model is read, and never changed."""
    check_command(config, predicts=True)
    ready = get_ready(config.online())
    config = ready.config
    if finished(config) or ready.model is None:
        return config.run_folder
    check_claim(config, ready.store, ready.binding)
    with seated(config) as exchange:
        agree(exchange, ready)
        report = RunReport(config.run_folder)
        report.begin(config)
        job, _, scaling = take_seat(exchange, ready)
        _assign(ready, ready.model, job, report)
        finish(exchange, ready, job, 1, scaling)
        report.end()
    return config.run_folder


def _assign(ready: Ready, model: Model, job: Job, report: RunReport) -> None:
    """One pipeline over all rows, unless it has ended before."""
    config, seat = ready.config, job.seat.open()
    done = newest_checkpoint(config, job)
    if done >= 1:
        return
    begin = time.perf_counter()
    if done < 0:
        log.info("agreed with %s; running on %s", ", ".join(config.peers), config.engine.runner)
        kept = checkpoints(model.folder, run_seed(model_config(config), model.binding))
        copy_model(job, seat, kept, model.iterations)
    progress = TrainProgress(1, len(job.shards), what=f"rows assigned to clusters of {model.run!r}")
    with progress.showing(0):
        stages = counters(run_pipeline(config, partial(_build, job, ready.store.manifest)))
        finish_prediction(job, seat)
        progress.passed(1, sent(stages))
    report.add(time.perf_counter() - begin, stages)


def _build(job: Job, manifest: Manifest, pipeline: beam.Pipeline) -> None:
    _ = pipeline | beam.Create([job.shards]) | "Predict" >> PredictRows(job, manifest)
