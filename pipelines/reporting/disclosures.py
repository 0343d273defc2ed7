"""What a run has told, and to whom: all that is opened or public, and the masked messages of each step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from veilmeans.pipelines.session.joint_scaling import opened_statistics
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.kmeans_config import KMeansConfig
from veilmeans.transforms.kmeans.joint_statistics import MOMENTS, extremes
from veilmeans.transforms.kmeans.open_results import RevealPolicy, open_assignments, open_centroids
from veilmeans.transforms.kmeans.steps import KMeansSteps
from veilmeans.transforms.rounds.protocol import Protocol

Openings = Sequence[Mapping[str, Any]]
"""When, and by which policy: `RunReport.add_opening`."""


@dataclass(frozen=True)
class Disclosure:
    """Something that was opened or is public."""

    what: str
    to: str
    when: str
    why: str


def disclosures(
    config: JobConfig, job: KMeansConfig, openings: Openings, done: int, offline: Sequence[Disclosure] = ()
) -> list[Disclosure]:
    """All of it, in its order; `offline`: what was told then."""
    found = [*offline, _handshake(job)]
    if job.aggregates:
        found.append(_statistics(config, job))
    if job.tol and job.predict is None:
        times = f"after each iteration: {done:,} times"
        why = f"to know when to stop: whether the centroids’ squared movement is below {job.tol:g} in sum"
        found.append(Disclosure("one bit", "all", times, why))
    for opening in openings:
        found += _results(job, opening)
    return found


COSTS = Disclosure(
    "what operations cost on this machine", "all, and the dealer", "offline", "products: auto goes by it"
)
KEY = Disclosure("a public key", "all", "offline", "others compute on what it encrypts")


def _handshake(job: KMeansConfig) -> Disclosure:
    names = ", column names and categories" if job.layout == "horizontal" else ""
    what = f"the job’s configuration, numbers of rows and columns{names}; keyed digests of data and ids; "
    why = "all must compute the same; the digests tell nothing without their keys"
    return Disclosure(f"{what}which masks are free", "all", "at the handshake", why)


def _statistics(config: JobConfig, job: KMeansConfig) -> Disclosure:
    two = job.normalise.method == "zscore" and len(config.parties) == 2
    why = "one scale for all rows" + ("; of two parties, each can tell the other’s sums from its own" if two else "")
    return Disclosure(
        f"{opened_statistics(job)} of each column, over all rows", "all", "before the first iteration", why
    )


def _results(job: KMeansConfig, opening: Mapping[str, Any]) -> list[Disclosure]:
    policy, when = opening["policy"], moment(opening["when"]) if opening["when"] else "at the end"
    own = "of its own rows" if job.layout == "horizontal" else "of every row"
    columns, scale = "of all columns", ""
    if job.layout == "vertical" and policy["columns"] == "own":
        columns = "of its own columns"
    elif job.layout == "vertical":
        scale = "; with them the name and scale of each column"
    results = {
        "assignments": f"cluster {own}",
        "centroids": f"centroids {columns}, in original units{scale}",
        "inertia": "inertia: the sum of squared distances to the centroids",
    }
    why = "named in kmeans.reveal, which all agreed on"
    return [Disclosure(what, ", ".join(policy[name]), when, why) for name, what in results.items() if policy[name]]


def message_contents(kmeans: KMeansSteps, step: str) -> list[str]:
    """What the messages of a step are, in the paper's letters."""
    found: dict[str, None] = {}
    for each in _protocol(kmeans, step).rounds:
        found |= dict.fromkeys(text for text in each.sends.split("; ") if text != "nothing")
    return list(found)


def _protocol(kmeans: KMeansSteps, step: str) -> Protocol:
    policy = RevealPolicy(kmeans.layout)
    beside = {
        "extremes": extremes(kmeans.layout.parties),
        "moments": MOMENTS,
        "reveal-assignments": open_assignments(policy),
        "reveal-centres": open_centroids(policy),
    }
    protocol: Protocol = beside[step] if step in beside else getattr(kmeans, step)
    return protocol


def moment(when: str) -> str:
    """A time of `report.json` for people."""
    time = datetime.fromisoformat(when)
    return f"{time.day} {time:%b %Y, %H:%M} UTC"


def period(began: str, ended: str) -> str:
    """From one time to another; what both have in common once."""
    if moment(began) == moment(ended):
        return moment(began)
    first, last = datetime.fromisoformat(began), datetime.fromisoformat(ended)
    if first.date() != last.date():
        return f"{moment(began)} – {moment(ended)}"
    return f"{first.day} {first:%b %Y, %H:%M}–{last:%H:%M} UTC"
