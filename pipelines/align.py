"""The job `veilmeans align`: find the rows whose ids all parties have, and write this party's in one agreed order.

read and hash the ids ─▶ handshake ─▶ set-up of OTs ─▶ shards by a keyed hash ─▶ passes of private set intersection
─▶ compare the order's digests ─▶ write the rows. Safe to rerun: it resumes where it stopped.

With `align.reveal: size` the parties count their common ids, and nothing else; all then set it to ids, and rerun.
"""

import json
import logging
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from veilmeans.crypto.pairwise_encryption import PairwiseCipher
from veilmeans.io.exchange.connections import load_identity, load_peer_certificates
from veilmeans.io.exchange.exchange import Exchange, Outgoing, deliver_now, get_arrays
from veilmeans.io.exchange.handshake import check_bound_terms, exchange_terms
from veilmeans.io.files.atomic_files import write_json
from veilmeans.io.sources.aligned_rows import aligned_ending, source_state, write_aligned_rows
from veilmeans.io.sources.source_files import set_filesystem_options
from veilmeans.io.storage.run_report import RunReport
from veilmeans.pipelines.reporting.progress import counting_shards
from veilmeans.pipelines.session.agreed_terms import agreed_terms
from veilmeans.pipelines.session.aligned_config import Alignment, load_alignment, no_common_rows, use_alignment
from veilmeans.pipelines.session.execution import run_shard_work
from veilmeans.pipelines.session.session import binding_of, exchange_farewells, farewell_received, open_session
from veilmeans.schemas.address import COUNT_RUN, Address
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import ConfigError, InputError, RefusedError
from veilmeans.schemas.handshake_terms import Terms
from veilmeans.schemas.message import MessageKey
from veilmeans.schemas.run_folder import RunFolder

if TYPE_CHECKING:
    from veilmeans.io.sources.id_columns import ScannedIds

log = logging.getLogger(__name__)
IDS = "number of ids"
_FEW_IDS = 1 << 18  # ids of all parties that are aligned in this process, without Beam


def align_missing(config: JobConfig) -> JobConfig:
    """The configuration with aligned rows, which the parties align now if they have not; as it is without `align`."""
    if config.align is None or config.party not in config.parties:
        return config
    found = load_alignment(config)
    if found is None or not config.aligning().run_folder.farewell.exists():
        log.info("aligning rows with %s (as `veilmeans align` does)", ", ".join(config.online().peers))
        found = run_align(config)
    return use_alignment(config, found)


def run_align(config: JobConfig) -> Alignment:
    """Take part in an alignment; return what was found. Safe to rerun: it resumes where it stopped."""
    _check(config)
    if config.align is not None and config.align.reveal == "size":
        raise ConfigError("align.reveal is size, so `veilmeans align` only counts: to match ids, all parties set ids")
    settings, found = config.aligning(), load_alignment(config)
    if found is not None and farewell_received(settings):
        return found
    scanned = _read_ids(config)
    agreed = _agreed(config)
    binding = binding_of(settings, bytes.fromhex(scanned.digest), json.dumps([scanned.ids, agreed], sort_keys=True))
    terms = dict.fromkeys(settings.peers, Terms(agreed, {IDS: scanned.ids}, binding))
    check_bound_terms(settings.run_folder, settings.party, terms)
    with open_session(settings) as exchange:
        heard = exchange_terms(
            exchange, settings.party, settings.run, terms, settings.run_folder, settings.exchange.timeout_s
        )
        ids = _numbers_of_ids(settings, heard, scanned.ids)
        report = RunReport(settings.run_folder)
        report.begin(settings)
        found = found or _align(exchange, config, scanned.rows, ids)
        exchange_farewells(exchange, settings, iteration=1, extra_timeout_s=_extra_timeout_s(ids))
        report.end()
    shutil.rmtree(config.alignment_folder.making, ignore_errors=True)
    return found


def run_count(config: JobConfig) -> str:
    """Take part in counting common ids; return a sentence with their number. Nothing is bound to it."""
    _check(config)
    meeting = config.aligning()
    settings = meeting.model_copy(update={"run": f"{COUNT_RUN}{config.alignment}"})
    scanned = _read_ids(config)
    terms = dict.fromkeys(meeting.peers, Terms(_agreed(config), {IDS: scanned.ids}))
    with open_session(settings, meeting.run) as exchange:
        timeout = settings.exchange.timeout_s
        with tempfile.TemporaryDirectory() as folder:
            place = RunFolder(Path(folder))
            heard = exchange_terms(exchange, meeting.party, meeting.run, terms, place, timeout)
        ids = _numbers_of_ids(meeting, heard, scanned.ids)
        common = _count_common(exchange, settings, config, scanned.digest, ids) if all(ids.values()) else 0
        if exchange_farewells(exchange, settings, iteration=1, extra_timeout_s=_extra_timeout_s(ids)):
            exchange.drop_messages(meeting.run)
            exchange.drop_messages(settings.run)
    shutil.rmtree(config.alignment_folder.ids, ignore_errors=True)
    sizes = ", ".join(f"{party} has {count:,}" for party, count in ids.items())
    return (
        f"{common:,} ids are common to all parties ({sizes}); which ones nobody has learnt. To match them, all parties "
        "set align.reveal to ids and rerun"
    )


def _count_common(exchange: Exchange, settings: JobConfig, config: JobConfig, digest: str, ids: dict[str, int]) -> int:
    """Count with ids hashed under a key that only the two parties have."""
    from veilmeans.crypto.ot.psi.id_hash import hash_under_key
    from veilmeans.io.storage.id_records import all_parts, read_records
    from veilmeans.transforms.alignment.count_ids import IdCounting

    (certificate,) = load_peer_certificates(settings).values()
    key = PairwiseCipher(load_identity(settings), certificate).digest(f"count {settings.run}".encode())
    folder = config.alignment_folder.ids
    hashes = np.concatenate([read_records(folder, number)[0] for number in all_parts(folder)])
    secret = binding_of(settings, bytes.fromhex(digest), "count").encode()
    first, second = ids.values()
    return IdCounting(exchange, settings, (first, second), secret).run(hash_under_key(key, hashes))


def _agreed(config: JobConfig) -> dict[str, Any]:
    """The fields that all parties must have alike; a name that is left out is the run's."""
    return {**agreed_terms(config.aligning(), "align"), "align.name": config.alignment, "kmeans.id": "set"}


def _read_ids(config: JobConfig) -> "ScannedIds":
    """Read this party's ids, check them, and write their hashes."""
    from veilmeans.io.sources.id_columns import IdRules, scan_ids  # imports numba: other jobs go without

    job, align = config.kmeans_with_data, config.align
    if align is None or job.id is None or job.data is None:
        raise ConfigError("align needs kmeans.id")
    rules = IdRules(align.case == "lower", align.duplicates == "first", align.missing == "drop")
    set_filesystem_options(job.data, config.beam.options)
    return scan_ids(job.data, job.id, rules, config.alignment_folder.ids)


def _numbers_of_ids(config: JobConfig, heard: Mapping[str, Terms], own: int) -> dict[str, int]:
    """The number of ids of each party, in the parties' order, from the terms that they sent."""
    counts = {peer: _count(peer, each) for peer, each in heard.items()} | {config.party: own}
    return {party: counts[party] for party in config.parties}


def _align(exchange: Exchange, config: JobConfig, rows: int, ids: dict[str, int]) -> Alignment:
    """Run all passes; write the rows, and then the manifest, which completes the alignment."""
    from veilmeans.transforms.alignment import align_passes
    from veilmeans.transforms.alignment.alignment_shape import AlignmentShape
    from veilmeans.transforms.rounds.executor import StageCosts

    settings, folder, source = config.aligning(), config.alignment_folder, config.kmeans_with_data.data or ""
    state = source_state(source)
    if not all(ids.values()):
        return _complete(config, Alignment(0, "", "", ids, state))
    aligning = align_passes.Aligning(settings, folder, AlignmentShape(tuple(ids.values())))
    costs, start = StageCosts(), time.perf_counter()
    align_passes.run_setup(aligning, exchange, costs)
    align_passes.shard_ids(aligning)
    report = RunReport(settings.run_folder)
    report.add(time.perf_counter() - start, costs.counts())
    for number in range(aligning.passes):
        if not folder.ended(number).exists():
            start, what = time.perf_counter(), f"alignment, pass {number + 1} of {aligning.passes}"
            with counting_shards(what, len(aligning.shards)):
                work = align_passes.AlignPass(aligning, number)
                stages = run_shard_work(settings, work, aligning.shards, sum(ids.values()) <= _FEW_IDS)
            exchange.flush()
            folder.ended(number).touch()
            report.add(time.perf_counter() - start, stages)
    places = np.memmap(folder.making / "places", np.int64, "w+", shape=(rows,))
    places[:] = -1
    count, order = align_passes.collect_order(aligning, places)
    _compare_orders(exchange, settings, aligning.timeout, order)
    start, file = time.perf_counter(), folder.data(aligned_ending(source))
    if count:
        write_aligned_rows(source, places, count, file, folder.making / "buckets")
    report.add(time.perf_counter() - start, {})
    return _complete(config, Alignment(count, order, file.name, ids, state))


def _complete(config: JobConfig, found: Alignment) -> Alignment:
    write_json(config.alignment_folder.manifest, found.to_json())
    return found


def _compare_orders(exchange: Exchange, settings: JobConfig, timeout: float, order: str) -> None:
    """Compare the digests of the common ids in their order, under keys that each two parties have."""
    identity, where = load_identity(settings), Address(settings.run, 0, "align.order", 0)
    digests = {
        peer: np.frombuffer(PairwiseCipher(identity, certificate).digest(f"order {order}".encode()), np.uint8)
        for peer, certificate in load_peer_certificates(settings).items()
    }
    deliver_now(
        exchange,
        [Outgoing.of(MessageKey(where, settings.party, peer), {"digest": each}) for peer, each in digests.items()],
    )
    for peer, mine in digests.items():
        theirs = get_arrays(exchange, MessageKey(where, peer, settings.party), timeout).get("digest")
        if not np.array_equal(mine, [] if theirs is None else theirs):
            raise RefusedError(f"the common rows of {settings.party} and {peer} differ: choose a new align.name, rerun")


def _check(config: JobConfig) -> None:
    job = config.kmeans_with_data
    if not job.vertical:
        raise ConfigError("there is nothing to align: with the horizontal layout each party has rows of its own")
    if job.id is None:
        raise ConfigError("align needs kmeans.id, the column with the rows' ids, at every party")
    if config.align is None:
        raise ConfigError("the configuration asks for no alignment: set align to true at every party")


def _count(peer: str, terms: Terms) -> int:
    count = terms.announced.get(IDS)
    if type(count) is not int or not 0 <= count < 2**40:
        raise RefusedError(f"{peer} did not say how many ids it has")
    return count


def _extra_timeout_s(ids: dict[str, int]) -> float:
    """Extra seconds that a peer may take to write its rows."""
    return 1e-4 * max(ids.values())


def describe(config: JobConfig, found: Alignment) -> str:
    """Describe an alignment in a sentence; an InputError if no row is common."""
    if not found.rows:
        raise InputError(no_common_rows(found))
    sizes = ", ".join(f"{party} has {count:,}" for party, count in found.ids.items())
    rows = f"{found.rows:,} ids are common to all parties ({sizes})"
    return f"{rows}; their rows, in the agreed order: {config.alignment_folder.path / found.file}"
