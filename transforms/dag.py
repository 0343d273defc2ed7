"""The protocol stages of a K-means job and what each waits for: the graph that plan and report show.

A step is a `Protocol` of one or more rounds. The stages of its rounds are called step.round in messages and metrics.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

from veilmeans.transforms.kmeans import KMeans
from veilmeans.transforms.plan import Over

When = Literal["once", "iteration", "end"]


@dataclass(frozen=True)
class Step:
    """What it computes, its part of the paper's figure (S1, S2, S3; empty beside them), and the steps before it."""

    name: str
    does: str
    phase: str
    over: Over
    when: When
    after: tuple[str, ...] = ()


_STEPS = (
    Step("extremes", "lowest and highest of each column", "", Over.ONE, "once"),
    Step("moments", "sums and squares of each column", "", Over.ONE, "once"),
    Step("operand", "X − U to the others", "", Over.ROWS, "once", ("extremes", "moments")),
    Step("norms", "⟨|μ|²⟩ of the start", "", Over.COLUMNS, "once", ("operand",)),
    Step("encrypt", "Enc(⟨μ⟩) to the owners", "S1", Over.COLUMNS, "iteration", ("norms",)),
    Step("distance", "⟨D'⟩ = ⟨|μ|²⟩ − 2·X·⟨μ⟩ᵀ", "S1", Over.ROWS, "iteration", ("operand", "norms", "encrypt")),
    Step("assign", "[C] = argmin ⟨D'⟩ of each row", "S2", Over.ROWS, "iteration", ("distance",)),
    Step("update", "⟨CᵀX⟩ and the counts", "S3", Over.ROWS, "iteration", ("assign",)),
    Step("reciprocal", "1/⟨n⟩ of the counts", "S3", Over.ONE, "iteration", ("update",)),
    Step("unmask", "⟨CᵀX⟩ out of ciphertexts", "S3", Over.COLUMNS, "iteration", ("update",)),
    Step("quotient", "⟨μ⟩ = ⟨CᵀX⟩ / ⟨n⟩", "S3", Over.COLUMNS, "iteration", ("update", "reciprocal", "unmask")),
    Step("finish", "stop bit, inertia, checkpoint", "S3", Over.ONE, "iteration", ("quotient",)),
    Step("reveal-assignments", "clusters, to whom they are due", "", Over.ROWS, "end", ("assign", "finish")),
    Step("reveal-centres", "centroids, inertia, to whom they are due", "", Over.ONE, "end", ("finish",)),
)
"""All that can be, in the order in which it runs."""
_TRAINING = {"norms", "update", "reciprocal", "unmask", "quotient", "finish"}
"""What a prediction does not do."""


def steps_of(kmeans: KMeans, statistics: str | None = None, opened: Collection[str] = ()) -> tuple[Step, ...]:
    """The steps of a job. `statistics`: what is aggregated before it (extremes or moments); `opened`: at its end."""
    absent = {"extremes", "moments", "reveal-assignments", "reveal-centres"} - {statistics, *opened}
    absent |= set() if kmeans.engines.masked else {"operand"}
    absent |= {name for name in ("encrypt", "unmask") if getattr(kmeans, name) is None}
    absent |= _TRAINING if kmeans.predicts else set()
    present = [step for step in _STEPS if step.name not in absent]
    names = {step.name for step in present}
    return tuple(
        replace(
            step,
            when="once" if kmeans.predicts and step.when == "iteration" else step.when,
            after=tuple(name for name in step.after if name in names),
        )
        for step in present
    )


def step_of(stage: str) -> str:
    """Of which step a stage is: "assign.03.choose", or "reveal-centres-3f….00.centres" with its policy's digest."""
    name = stage.split(".")[0]
    return next((step.name for step in _STEPS if name == step.name or name.startswith(f"{step.name}-")), name)
