"""A Flink session cluster: JobManager and job server on one host, two TaskManagers on a host each.

The JobManager and the TaskManagers are of Flink's distribution, the job server of Beam's Flink runner. TaskManagers
start Python harnesses (PROCESS environments), which see what their host sees.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from support.beam_runners import JOB_SERVER, OPENED, PARALLELISM, flink, flink_distribution
from support.cluster.hosts import Host, Network, await_page, await_true

WORKERS = ("worker1", "worker2")
HARNESS = Path(__file__).parent / "sdk_harness.py"
_MEMORY = {
    "cpu.cores": 1,
    "memory.task.heap.size": "256m",
    "memory.task.off-heap.size": "64m",
    "memory.managed.size": "128m",
    "memory.network.min": "256m",
    "memory.network.max": "256m",
    "memory.framework.heap.size": "128m",
    "memory.framework.off-heap.size": "128m",
    "memory.jvm-metaspace.size": "256m",
    "memory.jvm-overhead.min": "192m",
    "memory.jvm-overhead.max": "192m",
}
"""All of it must be given, where Flink's shell scripts do not compute it. One TaskManager alone can hold a whole job:
its network buffers are for all stages at once."""
_LOGGING = """
rootLogger.level = INFO
rootLogger.appenderRef.c.ref = C
appender.c.name = C
appender.c.type = CONSOLE
appender.c.layout.type = PatternLayout
appender.c.layout.pattern = %d{HH:mm:ss} %-5p %c{1} - %m%n
"""


@dataclass(frozen=True)
class FlinkCluster:
    """A running cluster; `workers` are the hosts of its TaskManagers."""

    manager: Host
    workers: Mapping[str, Host]
    rest: str
    job_endpoint: str

    def flags(self) -> list[str]:
        """Beam's flags for pipelines on this cluster."""
        # every host has the harness as ./harness, in its own folder, in which its TaskManager runs
        environment = ["--environment_type=PROCESS", '--environment_config={"command": "./harness"}']
        kept = "--environment_cache_millis=60000"  # else harnesses end between two stages
        runner = ["--runner=PortableRunner", f"--job_endpoint={self.job_endpoint}", f"--parallelism={PARALLELISM}"]
        return [*runner, *environment, kept]

    def jobs(self) -> list[dict[str, Any]]:
        """All jobs so far, with the states of their tasks."""
        return json.loads(self.manager.fetch(f"{self.rest}/jobs/overview"))["jobs"]

    def failures(self, job: str) -> int:
        """How many failures of a job Flink remembers; it restarted after each."""
        found = json.loads(self.manager.fetch(f"{self.rest}/jobs/{job}/exceptions"))
        return len(found["exceptionHistory"]["entries"])

    def task_managers(self) -> list[str]:
        """The TaskManagers that are alive."""
        found = json.loads(self.manager.fetch(f"{self.rest}/taskmanagers"))["taskmanagers"]
        return [each["id"] for each in found]


def start_flink_cluster(
    network: Network, sees: Sequence[Path], prepare: Callable[[Host], Mapping[str, str]]
) -> FlinkCluster:
    """Start a cluster on three new hosts; `prepare` gives a worker's host what it needs and returns its variables."""
    distribution, jars = flink_distribution(), flink()
    manager = network.add("manager", [distribution, jars])
    addresses = {"rpc": manager.port(), "rest": manager.port(), "blob": manager.port()}
    conf = _configure(manager, manager, addresses)
    entry = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
    command = ["java", "-Xmx512m", *_java(distribution, manager), entry, "--configDir", str(conf)]
    process = manager.start(command, "jobmanager.log")
    rest = f"http://{manager.address}:{addresses['rest']}"
    workers = {name: network.add(name, [distribution, jars, HARNESS, *sees]) for name in WORKERS}
    await_page(process, manager, "jobmanager.log", f"{rest}/overview")
    for worker in workers.values():
        _start_task_manager(worker, manager, addresses, (distribution, jars), prepare(worker))
    cluster = FlinkCluster(manager, workers, rest, _start_job_server(manager, addresses["rest"], conf, jars))
    await_true(process, manager, "jobmanager.log", lambda: len(cluster.task_managers()) == len(workers))
    return cluster


def _configure(host: Host, manager: Host, ports: Mapping[str, int]) -> Path:
    """Write the configuration of a host's process into its folder."""
    conf = host.folder / "conf"
    conf.mkdir()
    settings = {
        "jobmanager": {"rpc": {"address": manager.address, "port": ports["rpc"]}, "bind-host": manager.listen},
        "rest": {"address": manager.address, "bind-address": manager.address, "port": ports["rest"]},
        "blob": {"server": {"port": str(ports["blob"])}},
        "taskmanager": {"host": host.address, "bind-host": host.listen, "numberOfTaskSlots": PARALLELISM},
        "parallelism": {"default": PARALLELISM},
        "cluster": {"evenly-spread-out-slots": True},
        "classloader": {"resolve-order": "parent-first"},
        "heartbeat": {"interval": 2000, "timeout": 30_000},
        "restart-strategy": {"type": "fixed-delay", "fixed-delay": {"attempts": 10, "delay": "1 s"}},
        "io": {"tmp": {"dirs": str(host.folder)}},
    }
    (conf / "config.yaml").write_text(yaml.safe_dump(settings))
    (conf / "log4j.properties").write_text(_LOGGING)
    return conf


def _java(distribution: Path, host: Host, beam: Sequence[Path] = ()) -> list[str]:
    parts = ("flink-dist-*.jar", "log4j-api-*.jar", "log4j-core-*.jar", "log4j-slf4j-impl-*.jar")
    path = ":".join(map(str, [*(next((distribution / "lib").glob(part)) for part in parts), *beam]))
    logging = f"-Dlog4j.configurationFile={host.folder / 'conf/log4j.properties'}"
    return [f"-Djava.io.tmpdir={host.folder}", *OPENED, logging, "-cp", path]


def _beam(jars: Path) -> list[Path]:
    """Beam's jars, without what Flink's distribution has.

    A TaskManager has them on its own class path. Those that come with a job end with its tasks, and Beam then ends the
    harnesses after each stage, whatever their time in the cache is.
    """
    return sorted(jar for jar in jars.glob("*.jar") if not jar.name.startswith(("flink-", "slf4j-simple-")))


def _start_task_manager(
    host: Host, manager: Host, ports: Mapping[str, int], code: tuple[Path, Path], variables: Mapping[str, str]
) -> None:
    distribution, jars = code
    conf = _configure(host, manager, ports)
    harness = host.folder / "harness"
    harness.write_text(f'#!/bin/sh\nexec {sys.executable} {HARNESS} "$@"\n')
    harness.chmod(0o755)
    command = ["java", "-Xmx768m", "-XX:MaxDirectMemorySize=896m", *_java(distribution, host, _beam(jars))]
    command += ["org.apache.flink.runtime.taskexecutor.TaskManagerRunner", "--configDir", str(conf)]
    settings = {"resource-id": host.name, **_MEMORY}
    command += [part for name, value in settings.items() for part in ("-D", f"taskmanager.{name}={value}")]
    host.start(command, "taskmanager.log", {"OPENBLAS_NUM_THREADS": "1", **variables})


def _start_job_server(host: Host, rest: int, conf: Path, jars: Path) -> str:
    """Start Beam's job server; it submits to the JobManager on the same host."""
    ports = [host.port() for _ in range(3)]
    command = ["java", "-Xmx512m", f"-Djava.io.tmpdir={host.folder}", *OPENED, "-cp", f"{jars}/*", JOB_SERVER]
    command += [f"--flink-master={host.address}:{rest}", f"--flink-conf-dir={conf}", f"--job-host={host.address}"]
    command += [f"--{name}-port={port}" for name, port in zip(("job", "artifact", "expansion"), ports, strict=True)]
    process = host.start([*command, f"--artifacts-dir={host.folder}"], "jobserver.log")
    await_true(process, host, "jobserver.log", lambda: host.listens(ports[0]))
    return f"{host.address}:{ports[0]}"
