"""A stand-in for the Dataflow service, which really runs the jobs that are submitted to it. It is not Google's.

python dataflow_service.py ADDRESS PORT WORKERS FOLDER         takes jobs at http://localhost:PORT
python dataflow_service.py ADDRESS --run WORKERS FOLDER        runs one job, whose request is FOLDER/job.json

It answers the requests of Beam's Dataflow client: create a job, its state, messages and metrics. A job's graph is read
from the bucket to which the client staged it, as the service does, and Beam's in-process runner executes it with
workers elsewhere: those that Beam's worker pool at WORKERS (host:port) starts. They reach the runner at ADDRESS, and
get the job's pipeline options from it.
"""

import itertools
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

DONE, FAILED, RUNNING = "JOB_STATE_DONE", "JOB_STATE_FAILED", "JOB_STATE_RUNNING"
_KEPT = ("name", "clientRequestId", "type", "projectId")


class Service(BaseHTTPRequestHandler):
    """The part of the service's REST interface that Beam's client uses."""

    jobs: ClassVar[dict[str, dict[str, Any]]] = {}
    numbers = itertools.count()
    arguments: tuple[str, str, Path] = ("", "", Path())

    def do_POST(self) -> None:
        job = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name = f"job-{next(self.numbers)}"
        self.jobs[name] = {field: job[field] for field in _KEPT if field in job}
        self.jobs[name] |= {"id": name, "currentState": RUNNING, "location": "local"}
        threading.Thread(target=self._run, args=(name, job), daemon=True).start()
        self._answer(self.jobs[name])

    def do_GET(self) -> None:
        parts = self.path.split("?")[0].strip("/").split("/")
        known = [self.jobs[part] for part in parts if part in self.jobs]
        if not known:
            self._answer({"jobs": list(self.jobs.values())})
        elif parts[-1] == "messages":
            self._answer(self._messages(known[0]))
        elif parts[-1] == "metrics":
            self._answer(json.loads((self._folder(known[0]["id"]) / "metrics.json").read_text()))
        else:
            self._answer(known[0])

    def _run(self, name: str, job: dict[str, Any]) -> None:
        address, workers, _ = self.arguments
        folder = self._folder(name)
        folder.mkdir()
        (folder / "job.json").write_text(json.dumps(job))
        with (folder / "log.txt").open("wb") as log:
            command = [sys.executable, __file__, address, "--run", workers, str(folder)]
            code = subprocess.run(command, stdout=log, stderr=log, check=False).returncode
        self.jobs[name]["currentState"] = FAILED if code else DONE

    def _messages(self, job: dict[str, Any]) -> dict[str, Any]:
        """A failed job's error, which is all that a client needs to hear."""
        if job["currentState"] != FAILED:
            return {}
        text = (self._folder(job["id"]) / "log.txt").read_text()[-8000:]
        message = {
            "id": "1",
            "time": "2026-01-01T00:00:00Z",
            "messageImportance": "JOB_MESSAGE_ERROR",
            "messageText": text,
        }
        return {"jobMessages": [message]}

    def _folder(self, name: str) -> Path:
        return self.arguments[2] / name

    def _answer(self, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def run_job(address: str, workers: str, folder: Path) -> None:
    """Run a staged job on workers of the pool; leave its counters as the service would report them."""
    from apache_beam.io.filesystems import FileSystems
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.portability import common_urns
    from apache_beam.portability.api import beam_provision_api_pb2, beam_runner_api_pb2, endpoints_pb2
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner
    from apache_beam.runners.portability.fn_api_runner.fn_runner import ExtendedProvisionInfo
    from apache_beam.runners.portability.fn_api_runner.worker_handlers import ExternalWorkerHandler

    options = json.loads((folder / "job.json").read_text())["environment"]["sdkPipelineOptions"]
    provided = beam_provision_api_pb2.ProvisionInfo(retrieval_token="unused")
    provided.pipeline_options.update(options)
    with FileSystems.open(options["options"]["pipelineUrl"], compression_type="uncompressed") as staged:
        pipeline = beam_runner_api_pb2.Pipeline.FromString(staged.read())
    pool = beam_runner_api_pb2.ExternalPayload(endpoint=endpoints_pb2.ApiServiceDescriptor(url=workers))
    for environment in pipeline.components.environments.values():
        environment.urn, environment.payload = common_urns.environments.EXTERNAL.urn, pool.SerializeToString()
    ExternalWorkerHandler.host_from_worker = lambda _: address
    runner = FnApiRunner(provision_info=ExtendedProvisionInfo(provided))
    result = runner.run_via_runner_api(pipeline, PipelineOptions(["--direct_num_workers=2"]))
    state = result.wait_until_finish()
    counters = [
        {
            "name": {
                "origin": "user",
                "name": key.metric.name,
                "context": {"namespace": key.metric.namespace, **extra},
            },
            "scalar": counter.committed,
        }
        for counter in result.metrics().query()["counters"]
        for key in [counter.key]
        for extra in ({"step": key.step}, {"step": key.step, "tentative": "true"})
    ]
    (folder / "metrics.json").write_text(json.dumps({"metrics": counters}))
    os._exit(0 if state == "DONE" else 1)  # at once: the runner's threads have no end of their own


def main() -> None:
    address, *rest = sys.argv[1:]
    if rest[0] == "--run":
        run_job(address, rest[1], Path(rest[2]))
    Service.arguments = (address, rest[1], Path(rest[2]))
    ThreadingHTTPServer(("127.0.0.1", int(rest[0])), Service).serve_forever()


if __name__ == "__main__":
    main()
