"""One run on Prism, on a Flink cluster and on a stand-in for Dataflow: the shares of DirectRunner, bit for bit.

The cluster's hosts are namespaces: its workers see an object store, their party's gateway and no file of the party. On
a machine without namespaces they are processes on loopback, and pytest says so.
"""

import json
import tarfile
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import pytest

from support.beam_runners import started_runner
from support.cluster.dataflow import start_dataflow, start_workers
from support.cluster.flink_cluster import FlinkCluster, start_flink_cluster
from support.cluster.hosts import Host, Network, await_true, started_network
from support.cluster.object_store import ObjectStore, start_object_store
from support.cluster.parties_on_hosts import CODE, PartiesOnHosts, copy_checkout, place
from support.run_results import final_shares, opened_results
from support.worlds import World, blobs, he_by_columns, make_world, tables

A, B = "payco", "shop"
ITERATIONS = 2
GRAPH = 120_000
"""Bytes of a job's graph for each iteration."""


def beaver(folder: Path, parties: int) -> World:
    """Two columns of each party, in three row shards."""
    names = [f"c{i}" for i in range(2 * parties)]
    data = tables(blobs(300, len(names)), names, [2 * i for i in range(1, parties)], axis=1)
    agreed = {"layout": "vertical", "clusters": 3, "max_iter": ITERATIONS, "reveal": {"assignments": [A, B], "centroids": [B]}}
    return make_world(folder, data, agreed, beam={"rows_per_shard": 100})


WORLDS = {
    "beaver": lambda folder: beaver(folder, 2),
    "he": he_by_columns,
    "three parties": lambda folder: beaver(folder, 3),
}


@dataclass(frozen=True)
class Reference:
    """A world before its run, and what a run of DirectRunner's stages leaves."""

    new: World
    trained: World

    @classmethod
    def make(cls, name: str, folder: Path) -> "Reference":
        new = WORLDS[name](folder / "new")
        trained = new.copied(folder / "trained", beam={"rounds": "stages"})
        trained.train()
        return cls(new, trained)

    def check(self, other: World) -> None:
        """Compare all parties' final shares and everything that was opened."""
        assert len(final_shares(other)) > 2 * len(self.new.parties)
        assert final_shares(other) == final_shares(self.trained)
        assert opened_results(other) == opened_results(self.trained)


@pytest.fixture(scope="module", params=list(WORLDS))
def reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return Reference.make(request.param, tmp_path_factory.mktemp("reference"))


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    with started_network(tmp_path_factory.mktemp("cluster") / "hosts") as started:
        if not started.isolated:
            warnings.warn("no namespaces here: hosts are processes on loopback and see all files", stacklevel=1)
        (started.folder / "parties").mkdir()
        yield started


@pytest.fixture(scope="module")
def store(network: Network) -> ObjectStore:
    return start_object_store(network)


@pytest.fixture(scope="module")
def flink(network: Network, store: ObjectStore) -> FlinkCluster:
    return start_flink_cluster(network, CODE, store.variables, [network.folder / "parties"])


def on_workers(network: Network, store: ObjectStore, world: World, name: str) -> PartiesOnHosts:
    """Parties on hosts, of which payco's workers are elsewhere: all its iterations are one job."""
    changed = world.altered(A, gateway="separate", scratch=f"gs://veilmeans/{name}/scratch")
    changed = changed.altered(
        A, beam={"rounds": "stages", "attempts": 1}, kmeans={"iterations_per_pipeline": ITERATIONS}
    )
    site = place(network, changed, f"parties/{name}")
    site.start_gateway(A, store.variables(site.hosts[A]))
    return site


def train(site: PartiesOnHosts, store: ObjectStore, flags: list[str]) -> dict[str, str]:
    """Train: payco with these flags, everyone else on DirectRunner."""
    first = site.start(A, "train", flags, store.variables(site.hosts[A]))
    others = {name: site.start(name, "train") for name in site.hosts if name != A}
    return site.check_success("train", {A: first, **others})


@pytest.mark.flink
def test_a_flink_cluster(reference: Reference, network: Network, store: ObjectStore, flink: FlinkCluster) -> None:
    site = on_workers(network, store, reference.new, f"flink-{len(network.hosts)}")
    train(site, store, [*flink.flags(), "--job_name=train"])
    assert flink.jobs()[0]["state"] == "FINISHED"
    reference.check(site.world)


@pytest.mark.dataflow
def test_the_stand_in_for_dataflow(reference: Reference, network: Network, store: ObjectStore) -> None:
    name = f"dataflow-{len(network.hosts)}"
    site = on_workers(network, store, reference.new, name)
    worker, pool = start_workers(network, f"worker-{name}", store.variables, [network.folder / "parties"])
    service = start_dataflow(site.hosts[A], store, worker, pool)
    flags = service.flags(name, copy_checkout(site.hosts[A].folder / "checkout"))
    train(site, store, flags)
    reference.check(site.world)
    check_staged(store.objects, name)


def check_staged(objects: Mapping[str, bytes], name: str) -> None:
    """The package has all modules of veilmeans and nothing else, the graph of a job is small."""
    (package,) = [content for path, content in objects.items() if path.startswith(name) and path.endswith("workflow.tar.gz")]
    with tarfile.open(fileobj=BytesIO(package)) as packed:
        names = {Path(*Path(member.name).parts[1:]) for member in packed.getmembers() if member.isfile()}
    modules = {Path("src/veilmeans", path.relative_to(root.parent)) for root in CODE[1:] for path in root.rglob("*.py")}
    assert modules <= names
    (graph,) = [content for path, content in objects.items() if path.startswith(name) and path.endswith("pipeline.pb")]
    print(len(graph), len(package), sorted(map(str, names - modules)))
    assert len(graph) <= GRAPH * ITERATIONS
