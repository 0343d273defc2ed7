"""What a worker's machine runs for Beam: a Python SDK harness, with the boot program of Beam's images in short.

Started by Flink's PROCESS environment or by Beam's worker pool with the flags of the container contract. A package that
was staged with the job (`--setup_file`) is installed for this harness alone, and goes before any other.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import grpc
from apache_beam.io.filesystems import FileSystems
from apache_beam.portability import common_urns
from apache_beam.portability.api import (
    beam_provision_api_pb2,
    beam_provision_api_pb2_grpc,
    beam_runner_api_pb2,
    endpoints_pb2,
)
from google.protobuf import json_format, text_format

PACKAGE = "workflow.tar.gz"
"""The name under which Beam stages what `--setup_file` builds."""


def main() -> None:
    """Ask what to do, install what was staged, become the harness."""
    flags = _flags()
    info = _provision(flags)
    os.environ |= {
        "WORKER_ID": flags.id,
        "CONTROL_API_SERVICE_DESCRIPTOR": _descriptor(flags.control_endpoint or info.control_endpoint.url),
        "LOGGING_API_SERVICE_DESCRIPTOR": _descriptor(flags.logging_endpoint or info.logging_endpoint.url),
        "PIPELINE_OPTIONS": _options(json_format.MessageToJson(info.pipeline_options)),
        "SEMI_PERSISTENT_DIRECTORY": tempfile.gettempdir(),
    }
    for url in _staged_packages(info):
        os.environ["PYTHONPATH"] = _install(url)
    os.execv(sys.executable, [sys.executable, "-m", "apache_beam.runners.worker.sdk_worker_main"])


def _flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for name in ("id", "control_endpoint", "logging_endpoint", "provision_endpoint", "artifact_endpoint"):
        parser.add_argument(f"--{name}", default="")
    return parser.parse_known_args()[0]


def _provision(flags: argparse.Namespace) -> beam_provision_api_pb2.ProvisionInfo:
    with grpc.insecure_channel(flags.provision_endpoint) as channel:
        stub = beam_provision_api_pb2_grpc.ProvisionServiceStub(channel)
        request = beam_provision_api_pb2.GetProvisionInfoRequest()
        return stub.GetProvisionInfo(request, metadata=(("worker_id", flags.id),)).info


def _descriptor(url: str) -> str:
    return text_format.MessageToString(endpoints_pb2.ApiServiceDescriptor(url=url))


def _options(text: str) -> str:
    """Write integers as such, as the boot program does: Python's JSON of a protocol buffer has 600.0 for 600."""
    return json.dumps(json.loads(text, parse_float=_number))


def _number(digits: str) -> float:
    return int(digits[:-2]) if digits.endswith(".0") else float(digits)


def _staged_packages(info: beam_provision_api_pb2.ProvisionInfo) -> list[str]:
    """Where packages lie that were staged to a bucket (by Dataflow's client; Flink's workers have an image)."""
    return [
        beam_runner_api_pb2.ArtifactUrlPayload.FromString(each.type_payload).url
        for each in info.dependencies
        if each.type_urn == common_urns.artifact_types.URL.urn
        and beam_runner_api_pb2.ArtifactStagingToRolePayload.FromString(each.role_payload).staged_name == PACKAGE
    ]


def _install(url: str) -> str:
    folder = Path(tempfile.mkdtemp(prefix="staged-"))
    with FileSystems.open(url, compression_type="uncompressed") as staged:
        (folder / PACKAGE).write_bytes(staged.read())
    install = [
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "--target",
        str(folder / "code"),
    ]
    subprocess.run([sys.executable, "-m", "pip", *install, str(folder / PACKAGE)], check=True)
    return str(folder / "code")


if __name__ == "__main__":
    main()
