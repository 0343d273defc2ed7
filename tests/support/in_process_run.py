"""Whole runs of two or three parties in this process: configurations, data, stores, messages and what was opened."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.parties import NAMES, in_parallel, make_configs
from veilmeans.crypto import bits, prg
from veilmeans.crypto.pairwise_encryption import Seal
from veilmeans.io.exchange import connections as connect
from veilmeans.io.exchange.connections import load_identity, load_peer_certificates
from veilmeans.io.exchange.file_exchange import FileExchange
from veilmeans.io.exchange.inbox import MessageStore
from veilmeans.io.storage.checkpoints import Checkpoints, assignments, centroids
from veilmeans.io.storage.secret_files import read_secret
from veilmeans.io.storage.triple_store import Manifest, TripleStore
from veilmeans.pipelines.session.kmeans_from_config import layout_of, store_iterations, store_requirements
from veilmeans.pipelines.train import run_train
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Array, Real, from_stream
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.layout import Layout
from veilmeans.schemas.message import HEADER_SIZE, MessageKey
from veilmeans.transforms.offline.dealer import deal

# A world: parties with keys, data and dealt triples. Also for other tests of whole runs.
Configs = dict[str, JobConfig]


def make_world(
    folder: Path,
    parts: Sequence[pa.Table],
    job: Mapping[str, Any],
    kind: str = "gateway",
    engine: Mapping[str, Any] | None = None,
    ids: str | None = None,
) -> Configs:
    """A party for each part, with its data as a Parquet file and its store; `job` is what they agree on."""
    names = NAMES[: len(parts)]
    rows: Any = {name: part.num_rows for name, part in zip(names, parts, strict=True)}
    features: Any = {name: part.num_columns - (ids is not None) for name, part in zip(names, parts, strict=True)}
    vertical = job["layout"] == "vertical"
    shape = (
        {"rows": rows[names[0]], "features": features} if vertical else {"rows": rows, "features": features[names[0]]}
    )
    fields = {"triples": {"store": "store"}, "engine": dict(engine or {}), "kmeans": {**shape, "tol": 0, **job}}
    configs = make_configs(folder, len(parts), kind, exchange={"timeout_s": 60}, **fields)
    for name, part in zip(names, parts, strict=True):
        file = folder / name / "data.parquet"
        pq.write_table(part, file)
        configs[name] = changed(configs[name], data=str(file), id=ids)
    deal_all(configs)
    return configs


def changed(config: JobConfig, **fields: Any) -> JobConfig:
    """The same with other fields of the job."""
    content = config.model_dump()
    return JobConfig.model_validate({**content, "kmeans": {**content["kmeans"], **fields}})


def deal_all(configs: Mapping[str, JobConfig], secret: bytes = b"dealer") -> None:
    """Everyone's store, as `veilmeans offline` makes it. The same secret makes the same store."""
    first = next(iter(configs.values()))
    plan, store = store_requirements(first), first.required_triples
    manifest = Manifest(store.store, store.runs, store_iterations(first), plan.rows, plan.digest())
    seeds = [prg.derive(secret, name) for name in configs]
    stores = [
        TripleStore.create(config.store_folder, manifest, seed)
        for config, seed in zip(configs.values(), seeds, strict=True)
    ]
    for number in range(manifest.runs):
        for iteration in range(manifest.iterations):
            for shard in range(plan.shards):
                where = Address("", iteration, "", shard)
                dealt = deal(seeds, manifest.store, number, where, plan.needs(shard, iteration))
                for i, each in enumerate(stores):
                    each.write_corrections(number, iteration, shard, dealt.get(i, {}))
    for each in stores:
        each.complete()


def train(configs: Mapping[str, JobConfig]) -> None:
    """All parties in this process, each in a thread, over real exchanges."""
    together(run_train, configs)


def together(job: Callable[[JobConfig], object], configs: Mapping[str, JobConfig]) -> list[Any]:
    """A job of all parties in this process. Only one of them could read the standard error: none does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connect, "explained_handshakes", nullcontext)
        return in_parallel([partial(job, config) for config in configs.values()])


def kept_of(config: JobConfig, binding: str | None = None) -> Checkpoints:
    """What a party keeps of its run."""
    binding = binding or json.loads(next((config.store_folder / "claims").glob("*.json")).read_text())["binding"]
    seed = prg.derive(read_secret(config.seed), f"run {config.run} {binding}")
    return Checkpoints(config.run_folder, prg.derive(seed, "checkpoints"))


def checkpoint(config: JobConfig, done: int | None = None) -> dict[str, Array]:
    """What a party has after so many iterations, with the centroids of all column shards as "mu"."""
    store = kept_of(config)
    done = store.newest() if done is None else done
    count = len(list((store.folder / centroids(done)).glob("*.arrow")))
    parts = [store.read_shard(centroids(done), shard)["mu"] for shard in range(count)]
    return {**store.read(done), "mu": np.concatenate(parts, axis=1)}


def positions(config: JobConfig, done: int | None = None) -> list[Array]:
    """This party's shares of the one-hot rows, shard by shard."""
    store = kept_of(config)
    last = store.newest() if done is None else done
    return [store.read_shard(assignments(last), shard)["c"] for shard in range(len(layout(config).row_shards()))]


def layout(config: JobConfig) -> Layout:
    assert config.kmeans is not None
    return layout_of(config, config.kmeans)


def labels_of(configs: Mapping[str, JobConfig], done: int | None = None) -> list[Array]:
    """The clusters of each shard's rows, that all parties' shares together are."""
    places = layout(next(iter(configs.values()))).row_shards()
    found = []
    for place, *shares in zip(places, *(positions(config, done) for config in configs.values()), strict=True):
        hot = bits.unpack_rows(np.bitwise_xor.reduce(shares), place.block.rows)
        assert (hot.sum(axis=0) == 1).all()
        found.append(hot.argmax(axis=0))
    return found


def keep_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody drops a message from now on."""
    for exchange in (MessageStore, FileExchange):
        monkeypatch.setattr(exchange, "collect", lambda *_, **__: 0)


def received(config: JobConfig) -> Iterator[tuple[MessageKey, dict[str, Array]]]:
    """Every message that lies in a party's inbox or, sealed for it, in the others' outboxes."""
    for key, payload in _payloads(config):
        yield key, from_stream(pa.py_buffer(payload))


def _payloads(config: JobConfig) -> Iterator[tuple[MessageKey, bytes]]:
    if config.exchange.kind == "gateway":
        inbox = config.storage / "inbox"
        for file in sorted(inbox.rglob("*.msg")):
            yield _key(file.relative_to(inbox)), file.read_bytes()[HEADER_SIZE:]
        return
    for peer, certificate in load_peer_certificates(config.online()).items():
        outbox, seal = Path(config.peers[peer].outbox or "") / config.party, Seal(load_identity(config), certificate)
        for file in sorted(outbox.rglob("*.msg")):
            key = _key(file.relative_to(outbox))
            yield key, seal.open(file.read_bytes(), key.to_json().encode())[HEADER_SIZE:]


def _key(path: Path) -> MessageKey:
    run, iteration, stage, name = path.parts
    shard, sender, recipient, _ = name.split(".")
    return MessageKey(Address(run, int(iteration), stage, int(shard)), sender, recipient)


# What should come out, by Lloyd in the clear.
ROWS, ITERATIONS, CLUSTERS = 60, 1, 3


def blobs(rows: int, columns: int, seed: int = 4) -> Real:
    """Rows around three centres far apart, in columns of very different scale; no two values are alike."""
    rng = np.random.default_rng(seed)
    centroids = np.array([[0.1], [0.5], [0.9]]) + rng.uniform(-0.08, 0.08, (CLUSTERS, columns))
    rows_ = centroids[np.arange(rows) % CLUSTERS] + rng.normal(0, 0.03, (rows, columns))
    return rows_ * 10.0 ** np.arange(columns) - 3.0


def tables(data: Real, names: Sequence[str], cuts: Sequence[int], axis: int) -> list[pa.Table]:
    """The data cut into the parties' parts; axis 1: vertical."""
    parts = np.split(data, cuts, axis)
    columns = np.split(np.array(names), cuts) if axis else [np.array(names)] * len(parts)
    return [pa.table(dict(zip(of.tolist(), part.T, strict=True))) for part, of in zip(parts, columns, strict=True)]
