"""The job `veilmeans audit`: check a finished run from this party's own files; nothing is sent.

1. the statements that all parties signed at the farewell, against this party's transcript
2. the data and the job, against the digest to which this party was bound at the handshake
3. replay: every message of the chosen iterations and row shards is computed again, from the data, the seed, the
   triple store and the peers' messages, and compared bit for bit (`audit.keep`)
"""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from veilmeans.crypto import prg
from veilmeans.io.exchange.connections import load_identity, load_peer_certificates, run_seed
from veilmeans.io.exchange.handshake import stored_terms
from veilmeans.io.files.atomic_files import read_json
from veilmeans.io.messages.transcript import Transcript, first_different_link
from veilmeans.io.storage.encoded_shards import EncodedData
from veilmeans.io.storage.triple_store import TripleStore
from veilmeans.pipelines.session.kmeans_from_config import kmeans_steps
from veilmeans.pipelines.session.kmeans_run import committed_binding
from veilmeans.pipelines.session.own_data import encode_data, scan_data
from veilmeans.pipelines.session.result_opening import centroids_to_open, policy_of, read_shares
from veilmeans.pipelines.session.trained_model import FinishedRun, load_model
from veilmeans.pipelines.session.triple_claim import store_engines
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import ConfigError, RefusedError, StorageError
from veilmeans.transforms.auditing.replay import (
    ReplayExchange,
    ReplayExecutor,
    different_files,
    link_files,
)
from veilmeans.transforms.auditing.statements import SignedStatement, own_links, statement_file
from veilmeans.transforms.kmeans import iteration as kmeans
from veilmeans.transforms.kmeans.initial_centroids import initial_centroids_share, own_sum_of_squares
from veilmeans.transforms.kmeans.open_results import open_assignments, open_centroids, open_scores
from veilmeans.transforms.kmeans.party_state import PartyJob, by_columns, checkpoints_of, first_checkpoint
from veilmeans.transforms.rounds.executor import Describe, has_stopped, in_memory, not_counted


def run_audit(config: JobConfig, iteration: int | None = None, shard: int | None = None) -> Iterator[str]:
    """Check a run; yield a line for each thing that was found right, and raise a RefusedError at the first that is not.

    `iteration`: replay this one only. `shard`: replay this row shard only, and what does not depend on others.
    """
    if config.shared is not None:
        raise ConfigError("audit replays a run from the party's own disk: copy what is in shared to storage, unsealed")
    config = config.online()
    run = FinishedRun.load(config)
    transcript = Transcript(config.run_folder.transcript(), config.run)
    yield from _check_statements(config, transcript)
    with tempfile.TemporaryDirectory(prefix="veilmeans-audit-") as folder:
        yield from _Audit(config, run, transcript, Path(folder), iteration, shard).replay()


def _check_statements(config: JobConfig, transcript: Transcript) -> Iterator[str]:
    """Compare what all parties signed with this party's transcript."""
    certificates = {config.party: load_identity(config).certificate, **load_peer_certificates(config)}
    for party in config.parties:
        statement = SignedStatement.read(statement_file(config, party))
        if statement is None:
            raise StorageError(f"{statement_file(config, party)} is missing: the run has not ended with a farewell")
        for peer in config.peers if party == config.party else (config.party,):
            signed = statement.links(party, config.run, transcript.run, peer, certificates[party])
            other = peer if party == config.party else party
            different = first_different_link(own_links(config, transcript, other), signed)
            if different is not None:
                raise RefusedError(
                    f"the transcript of {config.party} is not what {party} signed, from iteration {different} on: it "
                    "was changed after the run, or a party has lied at the farewell"
                )
            yield f"{party} has signed this transcript of its messages with {peer}: {len(signed):,} iterations"


@dataclass
class _Audit:
    """One replay. `folder`: for files that the replay writes."""

    config: JobConfig
    run: FinishedRun
    transcript: Transcript
    folder: Path
    iteration: int | None
    shard: int | None
    exchange: ReplayExchange = field(init=False)

    def __post_init__(self) -> None:
        self.exchange = ReplayExchange(self.transcript)

    def replay(self) -> Iterator[str]:
        config = self.config
        prepared, binding = self._committed_data()
        yield f"the data are those to which {config.party} was bound at the handshake"
        job, key = self._job(prepared, binding)
        numbers = self._iterations()
        copy = link_files(config.run_folder, self.folder)
        for number in numbers:
            for at, describe in self._descriptions(number, job, prepared):
                context = replace(at.context.open(self.exchange), folder=copy)
                describe(ReplayExecutor(at, context, not_counted, self.shard))
            self._raise_wrong()
            yield self._summary(number)
        wrong = different_files(config.run_folder, copy, key)
        if wrong:
            raise RefusedError(wrong[0])
        yield "the shares that this party has kept are those that the replay computes"

    def _iterations(self) -> list[int]:
        known = self.transcript.iterations()
        if self.iteration is not None and self.iteration not in known:
            raise ConfigError(
                f"run {self.config.run!r} has no iteration {self.iteration}: it has {known[0]} to {known[-1]}"
            )
        if self.shard is not None and not 0 <= self.shard < len(self.run.job.row_shards):
            raise ConfigError(f"run {self.config.run!r} has row shards 0 to {len(self.run.job.row_shards) - 1}")
        return known if self.iteration is None else [self.iteration]

    def _committed_data(self) -> tuple[EncodedData, str]:
        """Encode the data afresh, if they and the job are those to which the run is bound."""
        config, model = self.config, load_model(self.config)
        scan = scan_data(config, model)
        binding = committed_binding(config, scan, model)
        sent = [read_json(config.run_folder.terms(config.party, peer)) for peer in config.peers]
        if stored_terms(config.run_folder, config.party, config.peers) is None or None in sent:
            raise StorageError(f"the terms of run {config.run!r} are missing: restore them from a backup")
        if any(terms["binding"] != binding for terms in sent):
            raise RefusedError(
                f"{config.required_kmeans.data}, the job or the seed of {config.party} are not those to which run "
                f"{config.run!r} was bound at the handshake"
            )
        return encode_data(config, scan, self.run.scaling, self.folder / "data"), binding

    def _job(self, prepared: EncodedData, binding: str) -> tuple[PartyJob, bytes]:
        store = TripleStore.open(self.config.store_folder)
        claim = store.find_claim(self.config.run, binding)
        if claim is None:
            raise StorageError(f"the store of run {self.config.run!r} has no claim of it: restore it from a backup")
        steps = kmeans_steps(self.config, store_engines(self.config, store))
        context = replace(self.run.job.context, binding=binding, store_number=claim.number)
        key = prg.derive(run_seed(self.config, binding), "checkpoints")
        return PartyJob(steps, context, prepared.folder, True), key

    def _descriptions(self, number: int, job: PartyJob, prepared: EncodedData) -> Iterator[tuple[PartyJob, Describe]]:
        """All that a party does in an iteration, in order."""
        at, steps, done = job.at_iteration(number), job.steps, self.run.done
        if number == min(self.transcript.iterations()) and self.shard is None and not steps.predicts:
            yield job.at_iteration(0), partial(self._first, prepared)
        if number == 0 and steps.predicts:
            yield at, partial(kmeans.predict_rows, steps)
        elif number == 0 and steps.operand is not None:
            yield at, partial(kmeans.mask_operands, steps.operand)
        if number < 0 and steps.seeding is not None:
            yield at, partial(kmeans.choose_centroid, steps.seeding)
        stopped = steps.stop is not None and done and self._has_stopped(job)
        if not steps.predicts and (0 <= number < done or (number == done and stopped)):
            yield at, partial(kmeans.iterate, steps, number == 0)
        if number == done:
            yield from self._last(job)

    def _first(self, prepared: EncodedData, run: ReplayExecutor) -> None:
        """Write the first shares: of the centroids, or of those with which k-means++ begins."""
        job = run.job
        share = initial_centroids_share(self.config.kmeans_with_data, job.steps.layout, self.config.me, prepared)
        first = in_memory(*by_columns(job.steps, "mu", share).values())
        if job.steps.seeding is not None:
            kmeans.write_first_seeds(first, run)
        else:
            kmeans.write_first_centroids(first, first_checkpoint(own_sum_of_squares(prepared)), run)

    def _has_stopped(self, job: PartyJob) -> bool:
        return has_stopped(checkpoints_of(job.context.open(self.exchange)).read(self.run.done))

    def _last(self, job: PartyJob) -> Iterator[tuple[PartyJob, Describe]]:
        """List what follows the last iteration, and what was opened when the run ended."""
        last, done = job.after_last(self.run.done), self.run.done
        if not job.steps.predicts and last.steps.ends_with_more:
            if job.steps.starts > 1:
                yield job.choosing_start(done), partial(kmeans.choose_start, job.steps)
            yield last, partial(kmeans.follow_last, last.steps)
        policy = policy_of(self.config, job.steps.layout, self.config.kmeans_with_data.reveal)
        opened = {line.stage.split(".")[0] for line in self.transcript.lines(done)}
        at = replace(job, context=replace(job.context, iteration=done))
        for name, describe in (("assignments", open_assignments), ("scores", open_scores)):
            if f"reveal-{name}{policy.name}" in opened:
                yield at, partial(describe, policy)
        if f"reveal-centroids{policy.name}" in opened:
            store = checkpoints_of(job.context.open(self.exchange))
            state = centroids_to_open(self.run, read_shares(self.run, policy, store))
            yield at, partial(open_centroids, policy, in_memory(state))

    def _raise_wrong(self) -> None:
        if self.exchange.wrong:
            more = f", and {len(self.exchange.wrong) - 1:,} more" if len(self.exchange.wrong) > 1 else ""
            raise RefusedError(f"{self.exchange.wrong[0]}{more}")

    def _summary(self, number: int) -> str:
        """Say what was replayed; with all shards, a message of ours that the replay did not make is refused."""
        lines, made = self.exchange.lines(number), self.exchange.made
        sent = [key for key in lines if key.sender == self.config.party]
        left = sorted({key.address.stage for key in sent if key not in made})
        opened_later = [stage for stage in left if stage.startswith(("reveal-", "extremes", "moments"))]
        if self.shard is None and left != opened_later:
            unexpected = next(stage for stage in left if stage not in opened_later)
            raise RefusedError(
                f"{self.config.party} has sent {unexpected} in iteration {number}: the protocol does not"
            )
        compared = sum(key in made for key in sent)
        note = f"; not replayed: {', '.join(left)}" if left and self.shard is None else ""
        return f"iteration {number}: {compared:,} of {len(sent):,} messages sent replayed bit for bit{note}"
