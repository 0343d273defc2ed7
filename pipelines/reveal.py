"""The job `veilmeans reveal`: open more of a finished run, by a policy that all parties agree on now.

It needs the shares on disk and the others' consent, but no data and no triples. The parties meet under one name
whatever their policies, so that a difference is told; each policy's opening then has a name of its own.
"""

import tempfile
from pathlib import Path

from veilmeans.io.exchange.connections import check_listen_address, load_identity, load_peer_certificates
from veilmeans.io.exchange.handshake import shake_hands
from veilmeans.io.storage.result_files import ASSIGNMENTS, CENTROIDS, RESULT, read_result
from veilmeans.pipelines.planning.planned_bytes import steps_with_stages, traffic_of
from veilmeans.pipelines.planning.units import size
from veilmeans.pipelines.session.agreed_terms import agreed_terms
from veilmeans.pipelines.session.result_opening import (
    policy_digest,
    policy_of,
    read_shares,
    require_inertia,
    reveal_results,
)
from veilmeans.pipelines.session.session import exchange_farewells, farewell_received, open_session
from veilmeans.pipelines.session.trained_model import FinishedRun
from veilmeans.schemas.config import JobConfig, kmeans_with_data
from veilmeans.schemas.errors import ConfigError
from veilmeans.schemas.handshake_terms import Terms
from veilmeans.schemas.kmeans_config import RevealConfig
from veilmeans.transforms.rounds.party_context import checkpoints, run_seed


def dry_reveal(config: JobConfig) -> str:
    """What kmeans.reveal names now, from the shares that lie here."""
    config = config.online()
    reveal, trained, opening = load_opening(config)
    if farewell_received(opening):
        return f"this was opened already: the results are in {config.run_folder}"
    load_identity(config)
    load_peer_certificates(config)
    check_listen_address(config)
    _check_shares(config, trained, reveal)
    lines = [f"{config.party} in run {config.run!r} with {', '.join(config.peers)}, after {trained.done:,} iterations"]
    for what, who in reveal.model_dump(include={"assignments", "centroids", "inertia"}).items():
        lines += [f"would open {what} to {', '.join(who)}"] if who else []
    for step, counted in steps_with_stages(config, trained.job.kmeans):
        if step.when == "end":
            moved = traffic_of(config, counted)
            lines.append(
                f"  {step.name}: {moved.rounds} round, {size(moved.bytes_sent)} sent, {size(moved.bytes_received)} "
                "received"
            )
    return "\n".join([*lines, *(f"would write {config.run_folder / name}" for name in _files(config, reveal))])


def _check_shares(config: JobConfig, trained: FinishedRun, reveal: RevealConfig) -> None:
    """Damage is told, as it is before anything is sent."""
    seed = run_seed(config, trained.job.context.binding)
    policy = policy_of(config, trained.job.kmeans.layout, reveal)
    require_inertia(trained, policy, read_shares(trained, policy, checkpoints(config.run_folder, seed)))


def _files(config: JobConfig, reveal: RevealConfig) -> list[str]:
    found = [ASSIGNMENTS] if config.party in reveal.assignments else []
    return [*found, *([CENTROIDS] if config.party in reveal.centroids else []), RESULT]


def run_reveal(config: JobConfig) -> dict[str, object]:
    """Take part in an opening; what this party got. Start it again to go on after a mishap."""
    config = config.online()
    reveal, trained, opening = load_opening(config)
    meeting = _named(config, "reveal")
    if farewell_received(opening):
        return read_result(config.run_folder)
    with open_session(opening) as exchange:
        terms = {peer: Terms(_agreed(config, trained)) for peer in config.peers}
        with tempfile.TemporaryDirectory() as folder:  # nothing is bound: the next policy may be another
            shake_hands(exchange, config.party, meeting.run, terms, Path(folder), config.exchange.timeout_s)
        result = reveal_results(trained, reveal)
        if exchange_farewells(exchange, opening, iteration=1):
            exchange.collect(meeting.run)
            exchange.collect(config.run, before=trained.done + 1)
    return result


def load_opening(config: JobConfig) -> tuple[RevealConfig, FinishedRun, JobConfig]:
    """The policy, the finished run, and the configuration under whose name it is opened."""
    reveal = kmeans_with_data(config).reveal
    if not (reveal.assignments or reveal.centroids or reveal.inertia):
        raise ConfigError("kmeans.reveal names nobody who shall learn anything: say who, at every party")
    return reveal, FinishedRun.load(config), _named(config, policy_digest(reveal))


def _named(config: JobConfig, name: str) -> JobConfig:
    return config.model_copy(update={"run": f"{config.run[:60]}.{name}"})


def _agreed(config: JobConfig, trained: FinishedRun) -> dict[str, object]:
    policy = kmeans_with_data(config).reveal.model_dump(mode="json")
    return {
        **agreed_terms(config),
        "run": config.run,
        "iterations": trained.done,
        **{f"kmeans.reveal.{name}": value for name, value in policy.items()},
    }
