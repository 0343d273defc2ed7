"""The job `veilmeans predict`: assign new rows to the clusters of a trained model, whose centroids stay shares.

[align] ─▶ prepare, as the model's rows were ─▶ [offline] ─▶ handshake ─▶ claim triples ─▶ shares of the model
─▶ operands, distance, assign ─▶ reveal. A run of its own, and safe to rerun: it resumes where it stopped.
"""

import logging
import time
from pathlib import Path

from veilmeans.io.exchange.connections import run_seed
from veilmeans.io.exchange.exchange import Exchange
from veilmeans.io.storage.encoded_shards import EncodedData
from veilmeans.io.storage.run_report import RunReport, bytes_sent
from veilmeans.pipelines.align import align_missing
from veilmeans.pipelines.offline import make_missing_store
from veilmeans.pipelines.reporting.progress import RunProgress
from veilmeans.pipelines.session.execution import run_prediction
from veilmeans.pipelines.session.kmeans_run import CheckedRun, run_kmeans
from veilmeans.pipelines.session.resume import newest_checkpoint
from veilmeans.pipelines.session.trained_model import model_config
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import ConfigError
from veilmeans.transforms.kmeans.party_state import PartyJob, copy_model, finish_prediction
from veilmeans.transforms.rounds.party_context import run_checkpoints

log = logging.getLogger(__name__)


def run_predict(config: JobConfig) -> Path:
    """Take part in a prediction; return the folder with the results. The model is read, and never changed."""
    return run_kmeans(align_missing(config), True, make_missing_store, _assign)


def _assign(_exchange: Exchange, ready: CheckedRun, job: PartyJob, _data: EncodedData, report: RunReport) -> int:
    """Assign all rows, unless that was done before."""
    config, context, model = ready.config, job.context.open(), ready.model
    done = newest_checkpoint(config, job)
    if done >= 1:
        return 1
    if model is None:
        raise ConfigError(f"run {config.run!r} trains: it has no model")
    begin = time.perf_counter()
    if done < 0:
        log.info("agreed with %s; running on %s", ", ".join(config.peers), config.beam.runner)
        kept = run_checkpoints(model.folder, run_seed(model_config(config), model.binding))
        copy_model(job, context, kept, model.iterations)
    progress = RunProgress(1, len(job.row_shards), what=f"rows assigned to clusters of {model.run!r}")
    with progress.watching(0):
        stages = run_prediction(config, job, ready.store.manifest)
        finish_prediction(job, context)
        progress.report_done(1, bytes_sent(stages))
    report.add(time.perf_counter() - begin, stages)
    return 1
