"""The job `veilmeans sweep`: K-means with several numbers of clusters, to choose one by their inertias.

[align] ─▶ prepare ─▶ [offline] ─▶ handshake ─▶ claim triples ─▶ for each number of clusters: operands ─▶ iterations
─▶ reveal

All trainings share the prepared data, one handshake, one triple store and one claim of it, one gateway. Each has run
numbers of the store, masks, checkpoints and results of its own, under a run name of its own (RUN.k5): it can be opened
further, reported and predicted with like any other training. Safe to rerun: it resumes where it stopped.
"""

import logging
from pathlib import Path

from veilmeans.io.exchange.exchange import Exchange
from veilmeans.io.files.atomic_files import make_private_folder, write_json, write_text
from veilmeans.io.messages.transcript import Transcript
from veilmeans.io.storage.result_files import read_result
from veilmeans.io.storage.run_report import RunReport, bytes_sent
from veilmeans.pipelines.align import align_missing
from veilmeans.pipelines.offline import make_missing_store
from veilmeans.pipelines.session.kmeans_run import (
    CheckedRun,
    agree,
    check_data,
    check_openings,
    check_run,
    claim_part,
    forget_claimed,
    opened_data,
    run_claimed,
    with_clusters,
)
from veilmeans.pipelines.session.session import exchange_farewells, farewell_received, open_session
from veilmeans.pipelines.session.triple_claim import check_claim, is_made_first
from veilmeans.pipelines.train import train_iterations
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import ConfigError

log = logging.getLogger(__name__)


def run_sweep(config: JobConfig) -> Path:
    """Take part in a sweep; return the folder with its summary, beside which each training has its own folder."""
    check_sweep(config)
    config = align_missing(config).online()
    data = check_data(config)
    if is_made_first(config):
        make_missing_store(config)
    ready = check_run(config, data)
    swept = config.swept()
    if farewell_received(config):
        forget_claimed(config, ready.store, ready.binding, swept.values())
        return config.run_folder.path
    check_claim(config, ready.store, ready.binding)
    check_openings(config, opened_data(ready), swept.values())
    with open_session(config, *(part.run for part in swept.values())) as exchange:
        agree(exchange, ready)
        first, extra = claim_part(exchange, ready) * len(swept), 0.0
        for number, (clusters, part) in enumerate(swept.items()):
            log.info("training %d of %d: clusters: %d", number + 1, len(swept), clusters)
            extra = max(extra, _train_part(exchange, with_clusters(ready, part), first + number))
        _write_summary(config)
        transcripts = [Transcript(part.run_folder.transcript(), part.run) for part in swept.values()]
        ended = exchange_farewells(exchange, config, 1, extra, transcripts)
        for part in swept.values() if ended else ():
            part.run_folder.farewell.touch(mode=0o600)
            exchange.drop_messages(part.run)
        if ended:
            forget_claimed(config, ready.store, ready.binding, swept.values())
    return config.run_folder.path


def check_sweep(config: JobConfig) -> None:
    """Refuse a configuration that is for another command."""
    if config.required_kmeans.sweep is None:
        raise ConfigError(f"run {config.run!r} is no sweep: say which numbers of clusters, such as --clusters 2-10")
    config.swept()


def _train_part(exchange: Exchange, ready: CheckedRun, number: int) -> float:
    """Train with one number of clusters, unless that is done; return the seconds for which a peer may be silent."""
    extra = ready.steps.engines.extra_timeout_s(ready.steps.layout)
    folder, report = ready.config.run_folder, RunReport(ready.config.run_folder)
    if folder.result.exists():
        return extra
    make_private_folder(folder.path)
    report.begin(ready.config)
    run_claimed(exchange, ready, number, train_iterations, report)
    report.end()
    return extra


def _write_summary(config: JobConfig) -> None:
    """Write what the trainings cost and what was opened of them to this party, by their number of clusters."""
    for part in config.swept().values():
        for peer in config.peers:  # a prediction with one of the models finds the terms there
            for pair in ((config.party, peer), (peer, config.party)):
                write_text(part.run_folder.terms(*pair), config.run_folder.terms(*pair).read_text())
    trainings = [{"clusters": k, **_facts(part)} for k, part in config.swept().items()]
    write_json(config.run_folder.sweep, {"run": config.run, "trainings": trainings})


def _facts(part: JobConfig) -> dict[str, object]:
    result, report = read_result(part.run_folder), RunReport(part.run_folder).content
    costs = {"seconds": report["seconds"], "bytes_sent": bytes_sent(report["stages"])}
    return {**{name: result[name] for name in ("run", "iterations", "stopped", "inertia") if name in result}, **costs}
