"""The Beam runners of `make test-flink`, set up once in .cache/: a Flink job server, and Prism, Beam's local runner.

    PYTHONPATH=tests python -m support.beam_runners     sets both up and prints what they were made from

Prism is built with go at the running Beam's version. Flink's job server is that version's too, for the newest Flink
there is one for; where Maven's registry has none, it is put together from `LIBRARY`, an older release of its parts.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from apache_beam import __version__ as beam_version
from apache_beam.options.pipeline_options import FlinkRunnerOptions

from support.fault_injection import PATIENCE
from support.parties import free_ports, in_parallel, write_config
from support.worlds import World

CACHE = Path(__file__).parents[2] / ".cache"
TOOLS = ("go", "java", "mvn")
PRISM = "github.com/apache/beam/sdks/v2/go/cmd/prism"
LIBRARY = "org.apache.beam:beam-runners-flink-1.19:2.62.0"
LOGGER = "org.slf4j:slf4j-simple:1.7.36"
SOURCE = "made-from.txt"
PARALLELISM = 2
JOB_SERVER = "org.apache.beam.runners.flink.FlinkJobServerDriver"
_PACKAGES = ("java.lang", "java.util", "java.nio", "java.time", "java.net", "java.util.concurrent")
OPENED = tuple(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _PACKAGES)
"""Flags for the JDK's packages that Flink reaches into."""
_CONFIG = (
    "jobmanager:\n  bind-host: localhost\ntaskmanager:\n  bind-host: localhost\nrest:\n  bind-address: localhost\n"
)
_START_S = 300.0


class RunnerError(Exception):
    """A runner cannot be set up or started."""


@dataclass(frozen=True)
class BeamRunner:
    """Beam's flags for pipelines on a runner; `log` is its job server's, or None if Beam starts the runner itself."""

    flags: list[str]
    log: Path | None = None

    def ran(self, job: str, output: str) -> bool:
        """Return whether the runner took the job of this name, whose process printed `output`."""
        if self.log is None:
            return "Really starting service" in output and self.flags[-1].split("=")[1] in output
        return f"Invoking job {job}_" in self.log.read_text()


def need_tools() -> None:
    """Raise an error that names missing tools."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        raise RunnerError(f"make test-flink needs {', '.join(TOOLS)} on the PATH; missing: {', '.join(missing)}")


def prism() -> Path:
    """The folder with the Prism binary of the running Beam."""
    folder = CACHE / f"prism-{beam_version}"
    if not folder.exists():
        with _staged(folder) as stage:
            source = f"{PRISM}@v{beam_version}"
            _call(["go", "install", source], {"GOBIN": str(stage)})
            (stage / SOURCE).write_text(source)
    return folder


def flink() -> Path:
    """The folder with the jars of a Flink job server that the running Beam can talk to."""
    folder = CACHE / f"flink-{beam_version}"
    if not folder.exists():
        with _staged(folder) as stage:
            source = _copy_job_server(stage) or _copy_library(stage)
            (stage / SOURCE).write_text(source)
    return folder


def flink_distribution() -> Path:
    """The folder with Flink itself, of the job server's version; PyPI has it as a source package."""
    version = re.search(r"flink-([\d.]+)", (flink() / SOURCE).read_text())
    assert version is not None
    folder = CACHE / f"flink-distribution-{version[1]}"
    if not folder.exists():
        with _staged(folder) as stage:
            source = f"apache-flink-libraries~={version[1]}.0"
            _call([sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(stage), source])
            (archive,) = stage.glob("*.tar.gz")
            with tarfile.open(archive) as packed:
                packed.extractall(stage, filter="data")
            next(stage.glob("*/deps/lib")).rename(stage / "lib")
            (stage / SOURCE).write_text(archive.name.removesuffix(".tar.gz"))
            archive.unlink()
            shutil.rmtree(stage / archive.name.removesuffix(".tar.gz"))
    return folder


@contextmanager
def started_runner(name: str, scratch: Path) -> Iterator[BeamRunner]:
    """A runner for one party's pipelines, with a job server of its own where it is Flink."""
    need_tools()
    if name == "prism":
        yield BeamRunner(["--runner=PrismRunner", f"--prism_location={prism() / 'prism'}"])
        return
    log = scratch / "job-server.log"
    with _job_server(flink(), scratch, log) as endpoint:
        flags = ["--runner=PortableRunner", f"--job_endpoint={endpoint}", "--environment_type=LOOPBACK"]
        yield BeamRunner([*flags, f"--parallelism={PARALLELISM}"], log)


def _copy_job_server(folder: Path) -> str | None:
    """Copy the job server of the running Beam for the newest Flink; return None if there is none."""
    for version in reversed(FlinkRunnerOptions.PUBLISHED_FLINK_VERSIONS):
        source = f"org.apache.beam:beam-runners-flink-{version}-job-server:{beam_version}"
        command = ["mvn", "-B", "dependency:copy", f"-Dartifact={source}", f"-DoutputDirectory={folder}"]
        if subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode == 0:
            return source
    return None


def _copy_library(folder: Path) -> str:
    """Copy `LIBRARY`, which has the job server's class, and its dependencies."""
    (folder / "pom.xml").write_text(_pom([LIBRARY, LOGGER]))
    _call(["mvn", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={folder}"], cwd=folder)
    return LIBRARY


def _pom(artifacts: Sequence[str]) -> str:
    fields = ("groupId", "artifactId", "version")
    parts = ["<modelVersion>4.0.0</modelVersion>", _tags(fields, "veilmeans:runners:1"), "<dependencies>"]
    parts += [f"<dependency>{_tags(fields, artifact)}</dependency>" for artifact in artifacts]
    return "\n".join(['<project xmlns="http://maven.apache.org/POM/4.0.0">', *parts, "</dependencies>", "</project>"])


def _tags(names: Sequence[str], values: str) -> str:
    return "".join(f"<{name}>{value}</{name}>" for name, value in zip(names, values.split(":"), strict=True))


@contextmanager
def _job_server(jars: Path, scratch: Path, log: Path) -> Iterator[str]:
    """A Flink job server with a cluster inside it, which writes into `scratch` only and listens on loopback only.

    Beam's own ports in that process listen on all addresses: Beam has no option for it.
    """
    scratch.mkdir(parents=True)
    (scratch / "config.yaml").write_text(_CONFIG)
    ports = free_ports(3)
    with log.open("w") as file:
        process = subprocess.Popen(_job_server_command(jars, scratch, ports), stdout=file, stderr=subprocess.STDOUT)
    try:
        _await_port(process, ports[0], log)
        yield f"localhost:{ports[0]}"
    finally:
        process.terminate()
        process.wait()


def _job_server_command(jars: Path, scratch: Path, ports: Sequence[int]) -> list[str]:
    command = ["java", f"-Djava.io.tmpdir={scratch}", *OPENED]
    command += ["-cp", f"{jars}/*", JOB_SERVER, "--flink-master=[local]", f"--flink-conf-dir={scratch}"]
    command += [f"--{name}-port={port}" for name, port in zip(("job", "artifact", "expansion"), ports, strict=True)]
    return [*command, f"--artifacts-dir={scratch}"]


def _await_port(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("localhost", port)) == 0:
                return
        time.sleep(0.1)
    raise RunnerError(f"the Flink job server did not start: {log.read_text()[-2000:]}")


@contextmanager
def _staged(folder: Path) -> Iterator[Path]:
    """A folder to fill that becomes `folder` when it is complete."""
    print(f"setting up {folder.name} in {CACHE.name}; this takes minutes, and only once", flush=True)
    CACHE.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=CACHE, prefix=f"{folder.name}-") as temporary:
        stage = Path(temporary) / folder.name
        stage.mkdir()
        yield stage
        stage.rename(folder)


def _call(command: Sequence[str], variables: Mapping[str, str] | None = None, cwd: Path | None = None) -> None:
    environment = {**os.environ, **(variables or {})}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunnerError(f"{' '.join(command)} failed: {(done.stdout + done.stderr)[-2000:]}")


def main() -> None:
    try:
        need_tools()
        for runner in (flink, flink_distribution, prism):
            print(f"{runner.__name__}: {(runner() / SOURCE).read_text()}", flush=True)
    except RunnerError as error:
        sys.exit(f"error: {error}")


RUNNERS = [pytest.param(name, marks=getattr(pytest.mark, name)) for name in ("flink", "prism")]


def read_all(process: "subprocess.Popen[str]") -> str:
    """Everything that a process prints until it ends."""
    try:
        return process.communicate(timeout=PATIENCE)[0]
    finally:
        process.kill()


def run_with_flags(world: World, flags: Sequence[Sequence[str]], job: str) -> list[str]:
    """Run a command as processes with these flags; return their outputs."""
    processes = []
    for config, own in zip(world.parties.values(), flags, strict=True):
        file = write_config(config, world.folder / config.party / "config.yaml")
        command = [sys.executable, "-m", "veilmeans", "-v", job, "--config", str(file), *own]
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        processes.append(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
        )
    outputs = in_parallel([partial(read_all, process) for process in processes])
    assert not any(process.returncode for process in processes), "\n".join(text[-3000:] for text in outputs)
    return outputs


if __name__ == "__main__":
    main()
