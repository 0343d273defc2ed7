"""Normalisation over all parties' rows (`normalise.aggregate`): its statistics on shares, then opened to all.

Opened are, for each column, the lowest and highest value (minmax) or mean and deviation (zscore) of all rows together.
"""

import logging
import time

import numpy as np

from veilmeans.crypto import ring
from veilmeans.crypto.wide_ring import WORDS
from veilmeans.io.files.atomic_files import parse_json, write_json
from veilmeans.io.sources.column_encoding import columns_of_kind
from veilmeans.io.sources.scaling import Scaling, scale_columns
from veilmeans.io.sources.scan import Scan
from veilmeans.io.storage.run_report import RunReport
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import StorageError
from veilmeans.schemas.kmeans_config import KMeansConfig
from veilmeans.transforms.rounds.executor import BareExecutor, OneElement, StageCosts, in_memory
from veilmeans.transforms.rounds.party_context import PartyContext
from veilmeans.transforms.rounds.protocol import require
from veilmeans.transforms.statistics import joint_statistics

log = logging.getLogger(__name__)


def opened_statistics(job: KMeansConfig) -> str:
    """The statistics that the aggregate opens to all parties, for each column."""
    return "lowest and highest value" if job.normalise.method == "minmax" else "mean and deviation"


def aggregate_scaling(config: JobConfig, context: PartyContext, scan: Scan, rows: int) -> Scaling:
    """The common scale; opened once per run and kept in its folder."""
    file = config.run_folder.joint_scaling
    if not file.exists():
        scaling = _open_scale(config, context, scan, rows)
        write_json(file, {"shift": scaling.shift, "factor": scaling.factor})
    try:
        known = parse_json(file.read_text())
        return Scaling(tuple(known["shift"]), tuple(known["factor"]))
    except (OSError, ValueError, KeyError, TypeError):
        raise StorageError(f"{file} cannot be read: restore it from a backup") from None


def _open_scale(config: JobConfig, context: PartyContext, scan: Scan, rows: int) -> Scaling:
    job, columns = config.kmeans_with_data, len(scan.columns)
    log.info("opening to all parties: %s of each of %d columns, over all rows", opened_statistics(job), columns)
    if job.normalise.method == "minmax":
        own = joint_statistics.encode_bounds(np.array(scan.low), np.array(scan.high), scan.columns)
        low, high = joint_statistics.low_and_high(_open(config, context, own))
        return scale_columns(scan, "minmax", low.tolist(), high.tolist(), (), ())
    opened = _open(config, context, _sums_of_columns(scan))
    mean, deviation = joint_statistics.mean_and_deviation(opened, rows)
    return scale_columns(scan, "zscore", (), (), mean.tolist(), deviation.tolist())


def _open(config: JobConfig, context: PartyContext, own: ring.Ring) -> ring.Ring:
    """Open the statistics of all rows from this party's own; their costs are in the run's report."""
    costs, start = StageCosts(), time.perf_counter()
    opened_context = context.open()
    run = BareExecutor(OneElement(context), opened_context, costs)
    step = joint_statistics.statistics_step(config.required_kmeans.normalise.method, config.me.count)
    opened = joint_statistics.open_statistics(step, in_memory({"x": own}), run)
    opened_context.exchange.flush()  # the scale is kept, so a rerun would not send this again
    RunReport(config.run_folder).add(time.perf_counter() - start, costs.counts())
    return require(opened[0], "x")


def _sums_of_columns(scan: Scan) -> ring.Ring:
    """Put the sums of numeric columns among zeros for the columns of 0 and 1, which are not scaled."""
    sums = np.zeros((WORDS, 2, len(scan.columns)), ring.DTYPE)
    sums[..., columns_of_kind(scan.fields, "number")] = scan.required_sums
    return sums
