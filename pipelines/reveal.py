"""The job `veilmeans reveal`: open more of a finished run, by a policy that all parties agree on now.

It needs the shares on disk and the others' consent, but no data and no triples. The parties meet under one name
whatever their policies, so that a difference is reported; each policy's opening then has a name and a folder of its
own, which is bound to the terms: a rerun needs no peer that has what it needs.
"""

import hashlib
from functools import partial
from pathlib import Path

from veilmeans.io.exchange.connections import (
    attach_shared,
    check_listen_address,
    load_identity,
    load_peer_certificates,
    run_seed,
)
from veilmeans.io.exchange.handshake import exchange_terms
from veilmeans.io.messages.transcript import Transcript
from veilmeans.io.storage.result_files import read_result, write_result
from veilmeans.pipelines.planning.planned_bytes import planned_job, traffic_of
from veilmeans.pipelines.planning.units import format_size
from veilmeans.pipelines.session import result_opening
from veilmeans.pipelines.session.agreed_terms import agreed_terms
from veilmeans.pipelines.session.result_opening import policy_digest, reveal_results
from veilmeans.pipelines.session.session import exchange_farewells, farewell_received, open_session
from veilmeans.pipelines.session.trained_model import FinishedRun
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import ConfigError
from veilmeans.schemas.handshake_terms import Terms
from veilmeans.schemas.kmeans_config import REVEALED, RevealConfig
from veilmeans.transforms.auditing.signed_policies import keep_policies, signed_policy
from veilmeans.transforms.rounds.party_context import run_checkpoints


def dry_reveal(config: JobConfig) -> str:
    """Describe what `veilmeans reveal` would open, send and write; nothing is sent."""
    config = config.online()
    reveal, trained, opening = load_opening(config)
    if farewell_received(opening):
        return f"this was opened already: the results are in {config.run_folder}"
    load_identity(config)
    load_peer_certificates(config)
    check_listen_address(config)
    _check_shares(config, trained, reveal)
    lines = [f"{config.party} in run {config.run!r} with {', '.join(config.peers)}, after {trained.done:,} iterations"]
    for what, who in reveal.model_dump(include=set(REVEALED)).items():
        lines += [f"would open {what} to {', '.join(who)}"] if who else []
    traced = planned_job(config, trained.job.steps)
    for step in traced.steps:
        if step.when == "end":
            moved = traffic_of(config, traced.stage_counts(step))
            sent, received = format_size(moved.bytes_sent), format_size(moved.bytes_received)
            lines.append(f"  {step.name}: {moved.rounds} round, {sent} sent, {received} received")
    return "\n".join([*lines, *(f"would write {file}" for file in _files(config, reveal))])


def _check_shares(config: JobConfig, trained: FinishedRun, reveal: RevealConfig) -> None:
    """Fail on damaged shares before anything is sent."""
    seed = run_seed(config, trained.job.context.binding)
    policy = result_opening.policy_of(config, trained.job.steps.layout, reveal)
    store = run_checkpoints(config.run_folder, seed)
    shares = result_opening.read_shares(trained, policy, store)
    result_opening.require_kept(trained, policy, shares, store)


def _files(config: JobConfig, reveal: RevealConfig) -> list[Path]:
    folder = config.run_folder
    files = {"assignments": folder.assignments, "scores": folder.scores, "outliers": folder.outliers}
    files |= {"explanations": folder.explanations, "profiles": folder.profiles}
    files["centroids"] = folder.centroids
    return [*(file for what, file in files.items() if config.party in getattr(reveal, what)), folder.result]


def run_reveal(config: JobConfig) -> dict[str, object]:
    """Take part in an opening; return what this party learnt. Safe to rerun: it resumes where it stopped."""
    config = config.online()
    reveal, trained, opening = load_opening(config)
    meeting = _named(config, "reveal")
    if farewell_received(opening):
        return read_result(config.run_folder)
    with open_session(opening, meeting.run, config.run) as exchange:
        agreed = {**agreed_terms(config, "reveal"), "iterations": trained.done}
        signed, timeout = Terms(agreed, signed_policy(config, "reveal")), config.exchange.timeout_s
        terms, check = dict.fromkeys(config.peers, signed), partial(keep_policies, config, "reveal", opening.run)
        exchange_terms(exchange, config.party, meeting.run, terms, opening.run_folder, timeout, check)
        trained = trained.opened_as(opening.run)
        if not opening.run_folder.result.exists():  # else a peer may have what it needs, and be gone
            write_result(opening.run_folder, reveal_results(trained, reveal))
        transcript = Transcript(config.run_folder.transcript(opening.run), config.run)
        if exchange_farewells(exchange, opening, 1, 0.0, [transcript]):
            exchange.drop_messages(meeting.run)
            exchange.drop_messages(config.run, before=trained.done + 1)
    return read_result(config.run_folder)


def load_opening(config: JobConfig) -> tuple[RevealConfig, FinishedRun, JobConfig]:
    """The policy, the finished run, and the configuration under whose name it is opened."""
    attach_shared(config)
    reveal = config.kmeans_with_data.reveal
    if not any(getattr(reveal, what) for what in REVEALED):
        raise ConfigError("kmeans.reveal names nobody who shall learn anything: say who, at every party")
    trained = FinishedRun.load(config)
    result_opening.check_limit(trained, reveal)
    return reveal, trained, _named(config, policy_digest(reveal))


def _named(config: JobConfig, name: str) -> JobConfig:
    return config.model_copy(update={"run": opening_run(config.run, name)})


def opening_run(run: str, name: str) -> str:
    """The run name of an opening: no other run has it, and no other run's opening (`JobConfig` reserves the prefix).

    A name may have 80 characters, so a long run's is shortened, to a length that no other has, and gets a digest.
    """
    short = run if len(run) <= 60 else f"{run[:44]}-{hashlib.sha256(run.encode()).hexdigest()[:16]}"
    return f"open-{short}.{name}"
