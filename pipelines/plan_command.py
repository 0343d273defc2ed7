"""The command `veilmeans plan`: a plan, or a plan beside a run, as text and as JSON."""

import json
from pathlib import Path

import typer
from rich.console import Console, RenderableType

from veilmeans.io.files import write_json
from veilmeans.pipelines.compare import compare, show_comparison
from veilmeans.pipelines.estimate import Json
from veilmeans.pipelines.plan_kmeans import plan_ahead
from veilmeans.pipelines.show_plan import show_plan
from veilmeans.schemas.config import JobConfig

_THIS = "."
"""The configured run."""


def run_plan(config: JobConfig, json_file: str | None, run: str | None) -> None:
    """Text to the terminal, and JSON to a file; only JSON, if its file is "-"."""
    content, text = _found(config, run)
    if json_file == "-":
        typer.echo(json.dumps(content, indent=2, ensure_ascii=False))
        return
    if json_file is not None:
        write_json(Path(json_file), content)
    Console().print(text)


def _found(config: JobConfig, run: str | None) -> tuple[Json, RenderableType]:
    if run is None:
        plan = plan_ahead(config)
        return plan.to_json(), show_plan(plan)
    compared = compare(config, None if run == _THIS else run)
    return compared.to_json(), show_comparison(compared)
