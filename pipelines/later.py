"""The job `veilmeans reveal`: open more of a finished run, by a policy that all parties agree on now.

It needs the shares on disk and the others' consent, but no data and no triples. The parties meet under one name
whatever their policies, so that a difference is told; each policy's opening then has a name of its own.
"""

import tempfile
from pathlib import Path

from veilmeans.io.handshake import shake_hands
from veilmeans.io.results import read_result
from veilmeans.pipelines.party import agreed_terms, finished, say_farewell, seated
from veilmeans.pipelines.prepare import kmeans_job
from veilmeans.pipelines.reveal import Finished, digest_of, reveal_results
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import ConfigError
from veilmeans.schemas.jobs import RevealConfig
from veilmeans.schemas.terms import Terms


def run_reveal(config: JobConfig) -> dict[str, object]:
    """Take part in an opening; what this party got. Start it again to go on after a mishap."""
    config = config.online()
    reveal, trained, opening = load_opening(config)
    meeting = _named(config, "reveal")
    if finished(opening):
        return read_result(config.run_folder)
    with seated(opening) as exchange:
        terms = {peer: Terms(_agreed(config, trained)) for peer in config.peers}
        with tempfile.TemporaryDirectory() as folder:  # nothing is bound: the next policy may be another
            shake_hands(exchange, config.party, meeting.run, terms, Path(folder), config.exchange.timeout_s)
        result = reveal_results(trained, reveal)
        if say_farewell(exchange, opening, iteration=1):
            exchange.collect(meeting.run)
            exchange.collect(config.run, before=trained.done + 1)
    return result


def load_opening(config: JobConfig) -> tuple[RevealConfig, Finished, JobConfig]:
    """The policy, the finished run, and the configuration under whose name it is opened."""
    reveal = kmeans_job(config).reveal
    if not (reveal.assignments or reveal.centroids or reveal.inertia):
        raise ConfigError("kmeans.reveal names nobody who shall learn anything: say who, at every party")
    return reveal, Finished.load(config), _named(config, digest_of(reveal))


def _named(config: JobConfig, name: str) -> JobConfig:
    return config.model_copy(update={"run": f"{config.run[:60]}.{name}"})


def _agreed(config: JobConfig, trained: Finished) -> dict[str, object]:
    policy = kmeans_job(config).reveal.model_dump(mode="json")
    return {
        **agreed_terms(config),
        "run": config.run,
        "iterations": trained.done,
        **{f"kmeans.reveal.{name}": value for name, value in policy.items()},
    }
