"""Normalisation over all parties' rows (`normalise.aggregate`): its statistics on shares, then opened to all.

Opened are, for each column, the lowest and highest value (minmax) or mean and deviation (zscore) of all rows together.
"""

import json
import logging
import time
from collections.abc import Sequence
from functools import partial, reduce

import numpy as np

from veilmeans.crypto import ring
from veilmeans.crypto.wide_ring import add
from veilmeans.io.sources.column_encoding import of_kind
from veilmeans.io.sources.scaling import Scaling, scale_columns
from veilmeans.io.sources.scan import Scan, raw_rows
from veilmeans.io.storage.atomic_files import write_json
from veilmeans.io.storage.run_report import RunReport
from veilmeans.schemas.config import JobConfig, kmeans_with_data
from veilmeans.schemas.kmeans_config import KMeansConfig
from veilmeans.schemas.layout import Layout, ShardShape
from veilmeans.transforms.kmeans.joint_statistics import (
    MOMENTS,
    bounds,
    extremes,
    low_and_high,
    mean_and_deviation,
    sums,
)
from veilmeans.transforms.offline.requirements import Over, StepShapes
from veilmeans.transforms.rounds.executor import Tallies, counts_of, run_bare
from veilmeans.transforms.rounds.party_context import PartyContext
from veilmeans.transforms.rounds.protocol import Protocol, require
from veilmeans.transforms.rounds.trace import Shapes

log = logging.getLogger(__name__)


def aggregate_work(job: KMeansConfig, layout: Layout) -> tuple[StepShapes, ...]:
    """What the statistics ask of the triple store."""
    if not job.aggregates or job.normalise.method != "minmax":
        return ()
    return (StepShapes(extremes(layout.parties), partial(_bounds_shape, layout), Over.ONE, first=True),)


def opened_statistics(job: KMeansConfig) -> str:
    """What the aggregate tells of each column, to all parties."""
    return "lowest and highest value" if job.normalise.method == "minmax" else "mean and deviation"


def _bounds_shape(layout: Layout, block: ShardShape) -> Sequence[Shapes]:
    del block
    return [{"x": ((2, layout.total_features), "uint64")}] * layout.parties


def aggregate_scaling(config: JobConfig, context: PartyContext, scan: Scan, rows: int) -> Scaling:
    """The common scale; opened once per run and kept in its folder."""
    file = config.run_folder / "scale.json"
    if not file.exists():
        scaling = _open_scale(config, context, scan, rows)
        write_json(file, {"shift": scaling.shift, "factor": scaling.factor})
    known = json.loads(file.read_text())
    return Scaling(tuple(known["shift"]), tuple(known["factor"]))


def _open_scale(config: JobConfig, context: PartyContext, scan: Scan, rows: int) -> Scaling:
    job, columns = kmeans_with_data(config), len(scan.columns)
    log.info("opening to all parties: %s of each of %d columns, over all rows", opened_statistics(job), columns)
    if job.normalise.method == "minmax":
        own = bounds(np.array(scan.low), np.array(scan.high), scan.columns)
        opened = _open(config, context, extremes(config.me.count), own)
        low, high = low_and_high(opened)
        return scale_columns(scan, "minmax", low.tolist(), high.tolist(), (), ())
    own = _spread(scan, reduce(add, (sums(block, _numbers(scan)) for block in raw_rows(scan))))
    opened = _open(config, context, MOMENTS, own)
    mean, deviation = mean_and_deviation(opened, rows)
    return scale_columns(scan, "zscore", (), (), mean.tolist(), deviation.tolist())


def _open(config: JobConfig, context: PartyContext, protocol: Protocol, own: ring.Ring) -> ring.Ring:
    """Σ_i ⟨x⟩_i of a statistics protocol, its costs in the run's report."""
    tallies: Tallies = {}
    start = time.perf_counter()
    opened = require(run_bare(protocol, context.open(), {0: {"x": own}}, tallies)[0], "x")
    RunReport(config.run_folder).add(time.perf_counter() - start, counts_of(tallies))
    return opened


def _numbers(scan: Scan) -> list[str]:
    return [field.name for field in scan.fields if field.kind == "number"]


def _spread(scan: Scan, found: ring.Ring) -> ring.Ring:
    """Sums of numbers among those of all columns; of columns of 0 and 1, which are not scaled, nothing is told."""
    every = np.zeros((*found.shape[:-1], len(scan.columns)), ring.DTYPE)
    every[..., of_kind(scan.fields, "number")] = found
    return every
