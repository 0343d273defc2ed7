"""Files of a run that never ran, for tests of its report."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from support.parties import make_configs
from support.report_page import disclosure_rows
from veilmeans.io.storage.run_report import RunReport
from veilmeans.pipelines.planning.planned_bytes import planned_job
from veilmeans.pipelines.reporting.html_report import write_report
from veilmeans.pipelines.session.kmeans_from_config import kmeans_steps
from veilmeans.pipelines.session.trained_model import public_job
from veilmeans.schemas.config import JobConfig

BOTH = ["payco", "shop"]
LABELS = np.array([0, 1, 1, 2, 1, 1, 0], np.int32)
SCORES = np.array([0.0, 0.1, 0.2, 0.05, 1.2, 0.15, 0.65])
VERTICAL = {"layout": "vertical", "rows": len(LABELS), "features": {"payco": 2, "shop": 3}}
HORIZONTAL = {"layout": "horizontal", "rows": {"payco": len(LABELS), "shop": 5}, "features": 2}
ALL_RESULTS = {"assignments": BOTH, "centroids": BOTH, "inertia": BOTH}
SECRET = 424242.4242
"""A value of the data, wherever one could be."""


@dataclass(frozen=True)
class ReportedRun:
    """A run of payco's that never ran, and its page."""

    config: JobConfig
    page: str

    @property
    def numbers(self) -> dict[str, Any]:
        """The content of `report.json`."""
        return RunReport(self.config.run_folder).content

    @property
    def text(self) -> str:
        """The visible text outside pictures, with single spaces."""
        page = re.sub(r"<style>.*?</style>|<svg.*?</svg>", " ", self.page, flags=re.DOTALL)
        return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page))

    @property
    def disclosures(self) -> dict[str, str]:
        """The first word of what was opened or is public -> to whom."""
        return {row[0].split()[0].strip(":"): row[1] for row in disclosure_rows(self.page)}

    def check_silent(self) -> None:
        """Check that the page has no value, share, secret or path of this machine."""
        storage = self.config.storage
        for word in ("SECRET", "424242", str(storage.parent.parent), f"{storage.parent.name}/"):
            assert word not in self.page, word


def write_page(config: JobConfig) -> ReportedRun:
    """Write the report of a run and read its page."""
    file = write_report(config)
    assert file == config.run_folder.html_report
    return ReportedRun(config, file.read_text())


def job_config(folder: Path, job: Mapping[str, Any], beam: Mapping[str, Any] | None = None) -> JobConfig:
    """The configuration of payco; `job`: fields of `kmeans`."""
    fields = {"clusters": 3, "max_iter": 9, "data": str(folder / "payco" / "data.csv"), "reveal": ALL_RESULTS, **job}
    store = {"store": "october"}
    configs = make_configs(folder, kind="files", dealer="notary", triples=store, beam=beam or {}, kmeans=fields)
    return configs["payco"]


def make_run(
    folder: Path,
    job: Mapping[str, Any] = VERTICAL,
    beam: Mapping[str, Any] | None = None,
    finished: bool = True,
    stages: Sequence[str] | None = None,
) -> JobConfig:
    """Write the files that a run leaves at payco. `stages`: those of the report, if not all of the job's."""
    config = job_config(folder, job, beam)
    report = RunReport(config.run_folder)
    report.begin(config)
    names = _stage_names(config) if stages is None else stages
    report.add(1.5, {name: _counts(number) for number, name in enumerate(names)})
    for done, seconds in ((1, 2.0), (4, 3.0)):
        report.add_iterations(done, seconds, {"assign.00.pair": _counts(done)})
    offline = RunReport(config.offline().run_folder)
    offline.add(7.25, {"assign.00.pair": {"bytes_received": 123_000}, "offline.corrections": {"waited_us": 4_000_000}})
    offline.add_shards(18)
    _write_secrets(config)
    if finished:
        _finish(config, report)
    return config


def _stage_names(config: JobConfig) -> list[str]:
    steps = planned_job(config, kmeans_steps(config)).steps
    return sorted({stage.name for step in steps for stages in step.stages.values() for stage in stages})


def _counts(number: int) -> dict[str, int]:
    names = ("messages", "bytes_sent", "bytes_received", "waited_us", "computed_us", "delivered_us")
    return {name: (i + 3) * 1009**2 * (number + 1) % 9_999_991 for i, name in enumerate(names)}


def _write_secrets(config: JobConfig) -> None:
    """Write files whose content must not be in the report."""
    config.store_folder.path.mkdir(parents=True)
    config.store_folder.seed.write_bytes(b"SECRET-SEED")
    config.run_folder.checkpoints.mkdir()
    config.run_folder.checkpoint(4).write_bytes(b"SECRET-SHARE")
    saved = {"job": public_job(config), "binding": "SECRET-BINDING", "shift": [SECRET], "factor": [SECRET]}
    config.run_folder.finished.write_text(json.dumps(saved))


def _finish(config: JobConfig, report: RunReport) -> None:
    folder, reveal = config.run_folder, config.required_kmeans.reveal
    result: dict[str, Any] = {"run": config.run, "iterations": 4, "stopped": True}
    ids = [f"SECRET-ID-{i}" for i in range(len(LABELS))]
    if config.party in reveal.assignments:
        pa.parquet.write_table(pa.table({"id": ids, "cluster": LABELS}), folder.assignments)
        result["assignments"] = str(folder.assignments)
    if config.party in reveal.centroids:
        pa.parquet.write_table(pa.table({"amount": [SECRET] * 3}), folder.centroids)
        result["centroids"] = str(folder.centroids)
    if config.party in reveal.scores:
        pa.parquet.write_table(pa.table({"id": ids, "score": SCORES}), folder.scores)
    if config.party in reveal.inertia:
        result["inertia"] = 31.40625
    folder.result.write_text(json.dumps(result))
    report.add_opening(reveal.model_dump(mode="json"))
    report.end()
    folder.farewell.touch()
