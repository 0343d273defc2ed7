"""The disclosures of a run: all values that were opened or are public, and to whom."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from veilmeans.pipelines.planning.units import format_time
from veilmeans.pipelines.session.joint_scaling import opened_statistics
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.kmeans_config import KMeansConfig
from veilmeans.transforms.offline.traced_job import JobStep

Openings = Sequence[Mapping[str, Any]]
"""Time and policy of each opening: `RunReport.add_opening`."""


@dataclass(frozen=True)
class Disclosure:
    """A value that was opened or is public."""

    what: str
    to: str
    when: str
    reason: str


ANNOUNCED_COSTS = Disclosure(
    "costs of operations on this machine", "all members", "offline", "products: auto selects engines by them"
)
_ALIGNED = Disclosure(
    "which of its own ids all parties have, hence how many; the number of ids of each party",
    "all",
    "at the alignment",
    "rows are joined by their ids",
)
PUBLIC_KEY = Disclosure("a public key", "all", "offline", "others compute on ciphertexts under it")


def disclosures(
    config: JobConfig,
    job: KMeansConfig,
    steps: Sequence[JobStep],
    openings: Openings,
    done: int,
    offline: Sequence[Disclosure] = (),
) -> list[Disclosure]:
    """List all disclosures in the order in which they happened, those of alignment and offline phase first.

    The steps that open something are found by what their rounds declare, so that none can be forgotten here.
    """
    result = [*([_ALIGNED] if config.align else []), *offline, _handshake(job)]
    result += [_opened_by(step, config, job, done) for step in steps if step.opens and step.when != "end"]
    for opening in openings:
        result += _results(job, opening)
    return result


def _opened_by(step: JobStep, config: JobConfig, job: KMeansConfig, done: int) -> Disclosure:
    if step.name in ("extremes", "moments"):
        return _statistics(config, job)
    if step.name == "stop":
        reason = f"to know when to stop: whether the centroids’ squared movement is below {job.tol:g} in sum"
        times = step.times(done, stopped=done < job.max_iter)
        return Disclosure("one bit", "all", f"in each iteration but the first: {times:,} times", reason)
    return Disclosure("; ".join(step.opens), "all", f"in the step {step.name}", step.computes)


def _handshake(job: KMeansConfig) -> Disclosure:
    names = ", column names and categories" if job.layout == "horizontal" else ""
    what = f"the job’s configuration, numbers of rows and columns{names}; keyed digests of data and ids; "
    reason = "all must compute the same; the digests reveal nothing without their keys"
    return Disclosure(f"{what}which numbers of the triple store are unused", "all", "at the handshake", reason)


def _statistics(config: JobConfig, job: KMeansConfig) -> Disclosure:
    reason = "one scale for all rows"
    if job.normalise.method == "zscore" and len(config.parties) == 2:
        reason += "; each of two parties can compute the other’s sums from its own"
    what = f"{opened_statistics(job)} of each column, over all rows"
    return Disclosure(what, "all", "before the first iteration", reason)


def _columns_of(job: KMeansConfig) -> str:
    """The columns of which a party has values, in a disclosure's words."""
    return "in its own columns" if job.layout == "vertical" else "in all columns"


def _unless_small(job: KMeansConfig) -> str:
    """Describe what is opened in place of a small cluster's results."""
    if not job.reveal.minimum_size:
        return ""
    few = f"fewer than {job.reveal.minimum_size:,} rows"
    return f"; of clusters with {few}, and of one beside them where they have that together, only which they are"


def _results(job: KMeansConfig, opening: Mapping[str, Any]) -> list[Disclosure]:
    policy, when = opening["policy"], format_time(opening["when"]) if opening["when"] else "at the end"
    own = "of its own rows" if job.layout == "horizontal" else "of every row"
    columns, scale = "of all columns", ""
    if job.layout == "vertical" and policy["columns"] == "own":
        columns = "of its own columns"
    elif job.layout == "vertical":
        scale = "; with them the name and scale of each column"
    results = {"assignments": f"cluster {own}", "centroids": f"centroids {columns}, in original units{scale}"}
    results["centroids"] += _unless_small(job)
    results["inertia"] = "inertia: the sum of squared distances to the centroids"
    results["outliers"] = f"whether a row is an outlier, {own}"
    results["explanations"] = f"cluster of each outlier, {own}, and the centroids of these clusters, {_columns_of(job)}"
    if job.layout == "vertical" and policy.get("contributions") == "all":
        results["explanations"] += "; the outliers’ squared distances to their centroids, in normalised units"
    rows = "of all parties’ rows in it" if job.layout == "horizontal" else "of its rows"
    results["profiles"] = f"size of each cluster; mean and spread {rows}, {_columns_of(job)}, and of its own label"
    if job.reveal.minimum_size:
        results["explanations"] += _unless_small(job)
        results["profiles"] += _unless_small(job)
    elif job.profile_minimum > 1:
        results["profiles"] += f", unless it has fewer than {job.profile_minimum:,} rows"
    results["scores"] = f"squared distance {own} to its centroid, in normalised units"
    reason = "named in kmeans.reveal, which all agreed on"
    return [
        Disclosure(what, ", ".join(policy[name]), when, reason) for name, what in results.items() if policy.get(name)
    ]
