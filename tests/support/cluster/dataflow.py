"""The stand-in for Dataflow of `dataflow_service.py`, with a host for its workers."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from support.cluster.hosts import Host, Network, await_page, await_true
from support.cluster.object_store import BUCKET, ObjectStore

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Dataflow:
    """The service on a party's own host (Beam's client wants it at localhost), and the host of its workers."""

    port: int
    worker: Host
    folder: Path

    def flags(self, staging: str, setup: Path) -> list[str]:
        """The flags with which `veilmeans train` submits to it; `staging` is a folder in the bucket."""
        place = f"gs://{BUCKET}/{staging}"
        account = ["--project=veilmeans-test", "--region=local", f"--dataflow_endpoint=http://localhost:{self.port}"]
        staged = [f"--staging_location={place}/staging", f"--temp_location={place}/temp"]
        return ["--runner=DataflowRunner", *account, "--no_auth", *staged, f"--setup_file={setup}"]

    def shared_works(self) -> list[str]:
        """The option of each job that has the work of its steps."""
        jobs = [json.loads(file.read_text()) for file in self.folder.glob("*/job.json")]
        return [job["environment"]["sdkPipelineOptions"]["options"]["veilmeans_work"] for job in jobs]


def start_workers(
    network: Network, name: str, sees: Sequence[Path], prepare: Callable[[Host], Mapping[str, str]]
) -> tuple[Host, str]:
    """Start a host with Beam's worker pool; of the repository it sees its harness only. Return its endpoint."""
    host = network.add(name, [HERE / "sdk_harness.py", *sees])
    harness = host.folder / "harness"
    harness.write_text(f'#!/bin/sh\nexec {sys.executable} {HERE / "sdk_harness.py"} "$@"\n')
    harness.chmod(0o755)
    port = host.port()
    module = ["-m", "apache_beam.runners.worker.worker_pool_main", f"--service_port={port}"]
    command = [sys.executable, *module, f"--container_executable={harness}"]
    process = host.start(command, "pool.log", {"OPENBLAS_NUM_THREADS": "1", **prepare(host)})
    await_true(process, host, "pool.log", lambda: host.listens(port))
    return host, f"{host.address}:{port}"


def start_dataflow(driver: Host, store: ObjectStore, worker: Host, workers: str) -> Dataflow:
    """Start the service on the host of a party's own commands."""
    port = driver.port()
    folder = driver.folder / "jobs"
    folder.mkdir()
    arguments = [driver.address, str(port), workers, str(folder)]
    command = [sys.executable, str(HERE / "dataflow_service.py"), *arguments]
    process = driver.start(command, "dataflow.log", store.variables(driver))
    await_page(process, driver, "dataflow.log", f"http://localhost:{port}/jobs")
    return Dataflow(port, worker, folder)
