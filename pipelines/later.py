"""The job `veilmeans reveal`: open more of a finished run, by a policy that all parties agree on now.

It needs the shares on disk and the others' consent, but no data and no triples.
"""

from veilmeans.io.handshake import shake_hands
from veilmeans.io.results import read_result
from veilmeans.pipelines.party import agreed_terms, finished, say_farewell, seated
from veilmeans.pipelines.prepare import kmeans_job
from veilmeans.pipelines.reveal import Finished, digest_of, reveal_results
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import ConfigError
from veilmeans.schemas.terms import Terms


def run_reveal(config: JobConfig) -> dict[str, object]:
    """Take part in an opening; what this party got. Start it again to go on after a mishap."""
    config = config.online()
    reveal = kmeans_job(config).reveal
    if not (reveal.assignments or reveal.centroids or reveal.inertia):
        raise ConfigError("kmeans.reveal names nobody who shall learn anything: say who, at every party")
    trained = Finished.load(config)
    meeting = config.model_copy(update={"run": f"{config.run[:60]}.{digest_of(reveal)}"})
    if finished(meeting):
        return read_result(config.run_folder)
    with seated(meeting) as exchange:
        agreed = {
            **agreed_terms(config),
            "run": config.run,
            "iterations": trained.done,
            **{f"kmeans.reveal.{name}": value for name, value in reveal.model_dump(mode="json").items()},
        }
        terms = {peer: Terms(agreed) for peer in config.peers}
        folder, timeout = meeting.run_folder, config.exchange.timeout_s
        shake_hands(exchange, config.party, meeting.run, terms, folder, timeout)
        result = reveal_results(trained, reveal)
        say_farewell(exchange, meeting, iteration=1)
        exchange.collect(config.run, before=trained.done + 1)
    return result
