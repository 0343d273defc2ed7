"""The files that a run leaves: shares, messages, opened results, and what commands printed."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.fault_injection import files_below
from support.worlds import World, company_values
from veilmeans.crypto import bits, prg, ring
from veilmeans.crypto.pairwise_encryption import PairwiseCipher
from veilmeans.io.exchange.connections import load_identity, load_peer_certificates
from veilmeans.io.exchange.file_exchange import FileExchange
from veilmeans.io.exchange.inbox import MessageStore
from veilmeans.io.files.secret_files import read_secret
from veilmeans.io.messages.message_log import MessageLog
from veilmeans.io.storage.checkpoints import Checkpoints, assignments, centroids, scores, seed_weights
from veilmeans.pipelines.session.kmeans_from_config import layout_of
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Array, from_stream
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.layout import Layout
from veilmeans.schemas.message import HEADER_SIZE, MessageKey


# Shares.
def checkpoints_of(config: JobConfig) -> Checkpoints:
    """The checkpoints that a party keeps of its run."""
    binding = json.loads(next(config.store_folder.claims.glob("*.json")).read_text())["binding"]
    seed = prg.derive(read_secret(config.seed), f"run {config.run} {binding}")
    return Checkpoints(config.run_folder, prg.derive(seed, "checkpoints"))


def read_checkpoint(config: JobConfig, iterations: int | None = None) -> dict[str, Array]:
    """A party's shares after so many iterations (none: all), with the centroids of all column shards as "mu"."""
    store = checkpoints_of(config)
    iterations = store.newest() if iterations is None else iterations
    parts = [store.read_shard(centroids(iterations), shard)["mu"] for shard in store.shards(centroids(iterations))]
    return {**store.read(iterations), "mu": np.concatenate(parts, axis=1)}


def assignment_shares(config: JobConfig, iterations: int | None = None) -> list[Array]:
    """A party's shares of the one-hot rows, row shard by row shard, of an iteration (none: as they are opened)."""
    store = checkpoints_of(config)
    last = store.newest() + config.required_kmeans.assigns_finally if iterations is None else iterations
    return [store.read_shard(assignments(last), shard)["c"] for shard in range(len(data_layout(config).row_shards()))]


def opened_weights(configs: Mapping[str, JobConfig], chosen: int) -> Array:
    """Open the rows' weights in k-means++ when so many centroids were chosen."""
    shards = range(len(data_layout(next(iter(configs.values()))).row_shards()))
    stores = [checkpoints_of(config) for config in configs.values()]
    shares = [[store.read_shard(seed_weights(chosen), shard)["v"][0] for store in stores] for shard in shards]
    return np.concatenate([ring.total(each) for each in shares])


def data_layout(config: JobConfig) -> Layout:
    return layout_of(config, config.required_kmeans)


def opened_labels(configs: Mapping[str, JobConfig], iterations: int | None = None) -> list[Array]:
    """Open the clusters of each row shard's rows from all parties' shares."""
    shards = data_layout(next(iter(configs.values()))).row_shards()
    labels = []
    shares_of_parties = [assignment_shares(config, iterations) for config in configs.values()]
    for shard, *shares in zip(shards, *shares_of_parties, strict=True):
        hot = bits.unpack_rows(np.bitwise_xor.reduce(shares), shard.shape.rows)
        assert (hot.sum(axis=0) == 1).all()
        labels.append(hot.argmax(axis=0))
    return labels


def final_shares(world: World) -> dict[str, bytes]:
    """The last checkpoint, centroids, assignments and scores of all parties, as they lie on disk."""
    shares = {}
    for name, config in world.parties.items():
        folder = config.run_folder
        last = max(int(file.stem) for file in folder.checkpoints.glob("*.arrow"))
        files = [folder.checkpoint(last)]
        kept = last + config.required_kmeans.assigns_finally
        for kind in (centroids(last), assignments(kept), scores(kept)):
            files += folder.shares(kind).glob("*.arrow")
        shares |= {f"{name}/{file.relative_to(folder.path)}": file.read_bytes() for file in files}
    return shares


# Messages.
def keep_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody drop a message from now on."""
    for exchange in (MessageStore, FileExchange):
        monkeypatch.setattr(exchange, "drop_messages", lambda *_, **__: 0)


def received(config: JobConfig) -> Iterator[tuple[MessageKey, dict[str, Array]]]:
    """Every message in a party's inbox or, encrypted for it, in the others' outboxes."""
    for key, payload in _payloads(config):
        yield key, from_stream(pa.py_buffer(payload))


def _payloads(config: JobConfig) -> Iterator[tuple[MessageKey, bytes]]:
    if config.exchange.kind == "gateway":
        inbox = config.storage_folder.inbox
        for file in sorted(inbox.rglob("*.msg")):
            yield _key(file.relative_to(inbox)), file.read_bytes()[HEADER_SIZE:]
        for log in map(MessageLog, sorted(inbox.rglob("*.log"))):
            yield from ((key, log.read(key).to_pybytes()) for key in log.keys())  # noqa: SIM118
        return
    for peer, certificate in load_peer_certificates(config.online()).items():
        outbox = Path(config.peers[peer].outbox or "") / config.party
        cipher = PairwiseCipher(load_identity(config), certificate)
        for file in sorted(outbox.rglob("*.msg")):
            key = _key(file.relative_to(outbox))
            yield key, cipher.decrypt(file.read_bytes(), key.to_json().encode())[HEADER_SIZE:]


def _key(path: Path) -> MessageKey:
    run, iteration, stage, name = path.parts
    shard, sender, recipient, _ = name.split(".")
    return MessageKey(Address(run, int(iteration), stage, int(shard)), sender, recipient)


# Results and output.
def opened_results(world: World) -> dict[str, list[dict[str, Any]]]:
    """The results opened to each party, row by row; by "party/assignments" and "party/centroids"."""
    folders = {name: config.run_folder for name, config in world.parties.items()}
    files = {f"{name}/assignments": folder.assignments for name, folder in folders.items()}
    files |= {f"{name}/centroids": folder.centroids for name, folder in folders.items()}
    return {what: pq.read_table(file).to_pylist() for what, file in files.items()}


def file_contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in files_below(folder)}


def error_sentences(output: str) -> list[str]:
    """The sentences with which a command says why it fails."""
    return [line.removeprefix("error: ") for line in output.splitlines() if line.startswith("error: ")]


def company_values_in(output: str) -> list[str]:
    """The values of either world of two companies that occur in a text, to five digits."""
    values = [*company_values(4).reshape(-1), *company_values(2).reshape(-1)]
    return [f"{value:.5g}" for value in values if f"{value:.5g}" in output]
