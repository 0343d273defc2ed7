"""One run on Prism, on a Flink cluster and on a stand-in for Dataflow: the shares of DirectRunner, bit for bit.

The cluster's hosts are namespaces: its workers see an object store, their party's gateway and no file of the party. On
a machine without namespaces they are processes on loopback, and pytest says so.
"""

import json
import subprocess
import tarfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path

import pytest

from support.beam_runners import run_with_flags, started_runner
from support.cluster.dataflow import start_dataflow, start_workers
from support.cluster.flink_cluster import FlinkCluster, start_flink_cluster
from support.cluster.hosts import PATIENCE, Network, await_true, started_network
from support.cluster.object_store import ObjectStore, start_object_store
from support.cluster.parties_on_hosts import CODE, REPOSITORY, PartiesOnHosts, copy_checkout, place
from support.cluster.shared_shares import digests
from support.worlds import World, blobs, he_by_columns, make_world, tables

pytestmark = pytest.mark.timeout(2 * PATIENCE)
A, B = "payco", "shop"
SECRETS = "secrets"
ITERATIONS = 2
GRAPH, PACKAGE = "pipeline.pb", "workflow.tar.gz"
"""What Beam's client stages for the service."""
GRAPH_BYTES = 120_000
"""Of a job's graph and of the option with its work, for each iteration, at most."""


def beaver(folder: Path, parties: int) -> World:
    """Two columns of each party, in three row shards."""
    names = [f"c{i}" for i in range(2 * parties)]
    data = tables(blobs(300, len(names)), names, [2 * i for i in range(1, parties)], axis=1)
    agreed = {
        "layout": "vertical",
        "clusters": 3,
        "max_iter": ITERATIONS,
        "reveal": {"assignments": [A, B], "centroids": [B]},
    }
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
        new = WORLDS[name](folder / "new").altered(audit={"keep": True})
        trained = new.copied(folder / "trained", beam={"rounds": "stages"})
        trained.train()
        return cls(new, trained)

    def check(self, site: PartiesOnHosts, store: ObjectStore) -> None:
        """Compare what another run has left at hosts."""
        for name in self.trained.parties:
            found = site.call(name, "digest", store.variables(site.hosts[name]), "digests.json")
            self.check_party(name, json.loads(found), site.world)

    def check_party(self, name: str, found: Mapping[str, str], world: World) -> None:
        """Compare digests of a party's shares after each iteration, and everything that was opened to it."""
        assert len(found) > 3 * ITERATIONS
        assert found == digests(self.trained[name])
        opened = [each.run_folder(name).assignments for each in (self.trained, world)]
        assert opened[0].exists() == opened[1].exists() == (name in (A, B))
        assert name not in (A, B) or opened[0].read_bytes() == opened[1].read_bytes()


@pytest.fixture(scope="module", params=list(WORLDS))
def reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return Reference.make(request.param, tmp_path_factory.mktemp("reference"))


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    with started_network(tmp_path_factory.mktemp("cluster") / "hosts") as started:
        if not started.isolated:
            warnings.warn("no namespaces here: hosts are processes on loopback and see all files", stacklevel=1)
        (started.folder / SECRETS).mkdir(mode=0o700)
        yield started


@pytest.fixture(scope="module")
def store(network: Network) -> ObjectStore:
    return start_object_store(network)


@pytest.fixture(scope="module")
def flink(network: Network, store: ObjectStore) -> FlinkCluster:
    return start_flink_cluster(network, [*CODE, network.folder / SECRETS], store.variables)


def on_workers(network: Network, store: ObjectStore, world: World, name: str) -> PartiesOnHosts:
    """Parties on hosts. payco's workers are elsewhere and get a token as a file; its iterations are one job."""
    token = network.folder / SECRETS / name
    site = place(network, world.altered(exchange={"timeout_s": PATIENCE}), name)
    host = site.hosts[A]
    workers = {"listen": f"{host.address}:{host.port()}", "token": str(token)}
    shared = site.world.altered(A, gateway="separate", shared=f"gs://veilmeans/{name}/shared", workers=workers)
    beam = {"rounds": "stages", "attempts": 1}
    shared = shared.altered(A, beam=beam, kmeans={"iterations_per_pipeline": ITERATIONS})
    site = replace(site, world=shared)
    variables = store.variables(host)
    site.call(A, "move", variables)
    token.write_text(site.call(A, "token", variables, "token"))
    token.chmod(0o600)
    site.start_gateway(A, variables)
    return site


def train(site: PartiesOnHosts, store: ObjectStore, flags: Sequence[str]) -> dict[str, "subprocess.Popen[bytes]"]:
    """Start to train: payco with these flags, everyone else on DirectRunner."""
    first = site.start(A, "train", flags, store.variables(site.hosts[A]))
    return {A: first, **{name: site.start(name, "train") for name in site.hosts if name != A}}


@pytest.mark.prism
def test_prism(reference: Reference, tmp_path: Path) -> None:
    """Every party with a Prism of its own, here."""
    with started_runner("prism", tmp_path) as runner:
        beam = {"rounds": "stages", "attempts": 1}
        world = reference.new.copied(tmp_path / "prism", beam=beam, exchange={"timeout_s": PATIENCE})
        outputs = run_with_flags(world, [runner.flags] * len(world.parties), "train")
    assert all(runner.ran("", output) for output in outputs)
    for party, config in world.parties.items():
        reference.check_party(party, digests(config), world)


@pytest.mark.flink
def test_a_flink_cluster(reference: Reference, network: Network, store: ObjectStore, flink: FlinkCluster) -> None:
    site = on_workers(network, store, reference.new, f"flink-{len(network.hosts)}")
    site.check_success("train", train(site, store, flink.flags()))
    assert {job["state"] for job in flink.jobs()} == {"FINISHED"}
    reference.check(site, store)


@pytest.mark.flink
def test_a_task_manager_that_dies_in_an_iteration_changes_no_share(
    network: Network, store: ObjectStore, flink: FlinkCluster, tmp_path: Path
) -> None:
    """Its host ends at once, harness included. Flink restarts the job on the other one; payco does not try again."""
    reference = Reference.make("beaver", tmp_path)
    site = on_workers(network, store, reference.new, "killed")
    before = len(flink.jobs())
    running = train(site, store, flink.flags())
    await_true(running[A], site.hosts[A], "train.log", lambda: in_the_iterations(flink, before))
    flink.workers["worker2"].kill()
    site.check_success("train", running)
    iterations = sorted(flink.jobs(), key=lambda job: job["start-time"])[before + 1]
    assert iterations["state"] == "FINISHED"
    assert flink.failures(iterations["jid"]) >= 1
    assert flink.task_managers() == ["worker1"]
    reference.check(site, store)


def in_the_iterations(flink: FlinkCluster, before: int) -> bool:
    """Return whether a third of the tasks of a run's second job, its iterations, have ended, and not all of them."""
    jobs = sorted(flink.jobs(), key=lambda job: job["start-time"])[before:]
    return len(jobs) == 2 and bool(
        jobs[1]["tasks"]["total"] / 3 <= jobs[1]["tasks"]["finished"] < jobs[1]["tasks"]["total"]
    )


@pytest.mark.dataflow
def test_the_stand_in_for_dataflow(reference: Reference, network: Network, store: ObjectStore) -> None:
    name = f"dataflow-{len(network.hosts)}"
    site = on_workers(network, store, reference.new, name)
    worker, pool = start_workers(network, f"worker-{name}", [network.folder / SECRETS], store.variables)
    service = start_dataflow(site.hosts[A], store, worker, pool)
    flags = service.flags(name, copy_checkout(site.hosts[A].folder / "checkout"))
    site.check_success("train", train(site, store, flags))
    reference.check(site, store)
    check_staged(store.objects, name, max(map(len, service.shared_works())))
    assert list(worker.folder.glob("staged-*/code/veilmeans"))


def check_staged(objects: Mapping[str, bytes], name: str, shared_work: int) -> None:
    """Every job's package has all modules of veilmeans, and no file but code; graph and shared work are small."""
    staged = [(path.rpartition("/")[2], content) for path, content in objects.items() if f"{name}/staging/" in path]
    graphs, packages = ([content for file, content in staged if file == kind] for kind in (GRAPH, PACKAGE))
    assert len(graphs) == len(packages) >= 2
    assert 0 < max(map(len, graphs)) + shared_work <= GRAPH_BYTES * ITERATIONS
    for package in packages:
        with tarfile.open(fileobj=BytesIO(package)) as packed:
            names = [Path(*Path(member.name).parts[1:]) for member in packed.getmembers() if member.isfile()]
        modules = {
            Path("src/veilmeans", each.relative_to(REPOSITORY)) for room in CODE[1:] for each in room.rglob("*.py")
        }
        assert modules <= set(names)
        assert {each.suffix for each in names} <= {".py", ".j2", ".typed", ".toml", ".cfg", ".txt", ".md", ""}
