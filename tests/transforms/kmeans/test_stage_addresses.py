"""Names of stages and of what they ask for are addresses of the PRG: a changed one changes every mask of every run.

`stage_addresses.txt` has them all. Change it only with a new protocol version, and say so in the changelog.
"""

from collections.abc import Iterator
from pathlib import Path

from support.kmeans_in_memory import horizontal, kmeans_for, vertical
from veilmeans.schemas.kmeans_config import InitConfig, OutliersConfig, PredictConfig, RevealConfig
from veilmeans.transforms.kmeans.job_trace import trace_job
from veilmeans.transforms.kmeans.steps import KMeansSteps
from veilmeans.transforms.statistics.joint_statistics import MOMENTS, extremes

PLUS_PLUS = InitConfig(method="k-means++")
FROZEN = Path(__file__).with_name("stage_addresses.txt")
TRIMMED, MODEL = OutliersConfig(count=1, during_training=True), PredictConfig(model="model")
EXPLAINED = RevealConfig(outliers=("payco",), explanations=("payco",), contributions="all")
CLOSED = RevealConfig(outliers=("payco",), explanations=("payco",), profiles=("shop",), minimum_size=2)
JOBS = {
    "vertical, beaver, k = 5": kmeans_for(vertical(9, (2, 3), 4), 5, products="beaver"),
    "vertical, he, k = 3": kmeans_for(vertical(9, (2, 3), 4), 3, products="he"),
    "horizontal, three parties, k = 4": kmeans_for(horizontal((3, 2, 1), 2, 4), 4, products="beaver"),
    "vertical, outliers in each iteration, scores": kmeans_for(
        vertical(9, (2, 3), 4), 3, products="beaver", inertia=False, scores=True, outliers=TRIMMED
    ),
    "horizontal, three parties, outliers of a prediction": kmeans_for(
        horizontal((3, 2, 1), 2, 4),
        1,
        products="beaver",
        inertia=False,
        outliers=OutliersConfig(count=1),
        predict=MODEL,
    ),
    "vertical, explained outliers": kmeans_for(
        vertical(9, (2, 3), 4), 3, products="beaver", outliers=OutliersConfig(count=1), reveal=EXPLAINED
    ),
    "vertical, profiles, he": kmeans_for(
        vertical(9, (2, 3), 4), 3, products="he", reveal=RevealConfig(profiles=("shop",))
    ),
    "horizontal, profiles, three parties, k = 1": kmeans_for(
        horizontal((3, 2, 1), 2, 4), 1, products="beaver", reveal=RevealConfig(profiles=("payco", "bank"))
    ),
    "vertical, explained outliers, profiles, minimum size": kmeans_for(
        vertical(9, (2, 3), 4), 3, products="beaver", outliers=OutliersConfig(count=1), reveal=CLOSED
    ),
    "vertical, k-means++, he, k = 3": kmeans_for(vertical(9, (2, 3), 4), 3, products="he", init=PLUS_PLUS),
    "horizontal, k-means++, three parties, k = 2, two starts": kmeans_for(
        horizontal((3, 2, 1), 2, 4), 2, init=PLUS_PLUS, starts=2
    ),
}


def addresses(kmeans: KMeansSteps) -> Iterator[str]:
    """Every stage of an iteration with the labels of its correlations and ciphertexts."""
    for stage in (each for step in trace_job(kmeans).steps for stages in step.stages.values() for each in stages):
        labels = [
            need.label(part.name)
            for need in stage.needs
            for part in (*need.kind.uniform_parts(), *need.kind.determined_parts())
        ]
        yield " ".join([stage.name, *labels, *(need.label for need in stage.ciphertext_needs)])


def all_addresses() -> str:
    lines = []
    for job, kmeans in JOBS.items():
        lines += [f"# {job}", *sorted(set(addresses(kmeans)))]
    for protocol in (MOMENTS, extremes(2), extremes(3)):
        lines += [f"# {protocol.name}", *(stage.name for stage in protocol.stages())]
    return "\n".join(lines) + "\n"


def test_no_address_has_changed() -> None:
    assert all_addresses() == FROZEN.read_text()
