"""K-means under SPU between two processes on this machine: `python spu_program.py JOB.json`.

It runs in SPU's own environment (`spu_environment.py`) and imports nothing of this project but `tcp_traffic.py`, which
stands beside it. Job and result are files:

  job     protocol ("SEMI2K" or "CHEETAH"), iterations, rows and start (.npy files: n × d and k × d),
          listen (a port for each process), dial (the port by which each process reaches the other),
          centroids (a .npy file to write), measured (a JSON file to write)
  result  compile_s, share_s (both before the processes run), link_s (until both processes are connected), run_s (the
          program alone, at the slower process), traffic_mb (TCP payload both ways, without headers), peak_gib

The program, t times: D' = μ² − 2·x·μᵀ, C = one-hot rows of argmin D', μ ← Cᵀ·x / column sums of C. Processes share
nothing but what SPU sends; the values enter as secret shares. SEMI2K has its default dealer, which is the first process
itself: it could learn the other's values, so the figures are a lower bound for a separate dealer. Values have 18
fractional bits in 64-bit words.
"""

import json
import multiprocessing
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import spu  # type: ignore[import-not-found]
from spu import libspu
from tcp_traffic import connections, received_since  # type: ignore[import-not-found]

FRACTION_BITS = 18
_LONGEST_WAIT_MS = 3_600_000


@dataclass(frozen=True)
class Program:
    """A compiled program."""

    inputs: list[str]
    outputs: list[str]
    code: bytes


@dataclass(frozen=True)
class PartyResult:
    """The figures of one process, and its share of the centroids."""

    rank: int
    link_s: float
    run_s: float
    received: int
    peak_gib: float
    meta: bytes
    chunks: list[bytes]


def kmeans(clusters: int, iterations: int) -> Callable[..., Any]:
    """Return the program as a function of both parties' columns and the initial centroids."""
    import jax  # type: ignore[import-not-found]
    import jax.numpy as jnp  # type: ignore[import-not-found]

    def train(first: Any, second: Any, mu: Any) -> Any:
        x = jnp.concatenate([first, second], 1)
        for _ in range(iterations):
            nearest = jnp.argmin((mu * mu).sum(1)[None] - 2 * x @ mu.T, 1)
            c = jax.nn.one_hot(nearest, clusters, dtype=jnp.float32)
            mu = (c.T @ x) / c.sum(0)[:, None]
        return mu

    return train


def compile_kmeans(arrays: list[Any], iterations: int) -> Program:
    from spu.utils import frontend  # type: ignore[import-not-found]

    names = ["first", "second", "mu"]
    secret = [libspu.Visibility.VIS_SECRET] * len(names)
    program = kmeans(len(arrays[-1]), iterations)
    made, _ = frontend.compile(frontend.Kind.JAX, program, arrays, {}, names, secret, lambda _: ["centroids"])
    return Program(list(made.input_names), list(made.output_names), made.code)


def config(protocol: str) -> Any:
    return libspu.RuntimeConfig(
        protocol=getattr(libspu.ProtocolKind, protocol), field=libspu.FieldType.FM64, fxp_fraction_bits=FRACTION_BITS
    )


def run_party(rank: int, job: dict[str, Any], program: Program, shares: list[tuple[bytes, list[bytes]]]) -> PartyResult:
    """Connect to the other process, and run the program. Neither ends before both have counted their bytes."""
    start = time.perf_counter()
    link = _connect(rank, job)
    runtime = spu.Runtime(link, config(job["protocol"]))
    link_s = time.perf_counter() - start
    for name, share in zip(program.inputs, shares, strict=True):
        runtime.set_var(name, _share(*share))
    executable = libspu.Executable()
    executable.name, executable.code = "kmeans", program.code
    executable.input_names, executable.output_names = program.inputs, program.outputs
    before, start = connections(), time.perf_counter()
    runtime.run(executable)
    run_s, received = time.perf_counter() - start, received_since(before)
    link.barrier()
    result = runtime.get_var(program.outputs[0])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return PartyResult(rank, link_s, run_s, received, peak, result.meta, list(result.share_chunks))


def _connect(rank: int, job: dict[str, Any]) -> Any:
    ports = list(job["listen"])
    ports[1 - rank] = job["dial"][rank]
    description = libspu.link.Desc()
    for number, port in enumerate(ports):
        description.add_party(f"p{number}", f"127.0.0.1:{port}")
    description.recv_timeout_ms = description.http_timeout_ms = _LONGEST_WAIT_MS
    return libspu.link.create_brpc(description, rank)


def _share(meta: bytes, chunks: list[bytes]) -> Any:
    share = libspu.Share()
    share.meta, share.share_chunks = meta, chunks
    return share


def _run_and_report(out: Any, *arguments: Any) -> None:
    out.put(asdict(run_party(*arguments)))


def run(job: dict[str, Any]) -> None:
    """Compile, share, run both processes, and write what came out."""
    rows, start = (np.load(job[name]).astype(np.float32) for name in ("rows", "start"))
    half = max(1, rows.shape[1] // 2)
    arrays = [rows[:, :half], rows[:, half:], start]
    began = time.perf_counter()
    program = compile_kmeans(arrays, job["iterations"])
    compiled = time.perf_counter()
    values = spu.Io(2, config(job["protocol"]))
    shares = [values.make_shares(array, libspu.Visibility.VIS_SECRET) for array in arrays]
    shared = time.perf_counter()
    parties = run_parties(job, program, shares)
    centroids = values.reconstruct([_share(party.meta, party.chunks) for party in parties])
    np.save(job["centroids"], np.asarray(centroids, np.float64))
    measured = {
        "compile_s": compiled - began,
        "share_s": shared - compiled,
        "link_s": max(party.link_s for party in parties),
        "run_s": max(party.run_s for party in parties),
        "traffic_mb": sum(party.received for party in parties) / 1e6,
        "peak_gib": max(party.peak_gib for party in parties),
    }
    Path(job["measured"]).write_text(json.dumps(measured))


def run_parties(job: dict[str, Any], program: Program, shares: list[Any]) -> list[PartyResult]:
    """Run both processes; a failure of one ends the other."""
    context = multiprocessing.get_context("spawn")
    out = context.SimpleQueue()
    processes = []
    for rank in range(2):
        own = [(share[rank].meta, list(share[rank].share_chunks)) for share in shares]
        processes.append(context.Process(target=_run_and_report, args=(out, rank, job, program, own), daemon=True))
    for process in processes:
        process.start()
    results: list[PartyResult] = []
    while len(results) < len(processes):
        while out.empty():
            if any(process.exitcode for process in processes):
                raise SystemExit("a process of SPU failed")
            time.sleep(0.05)
        results.append(PartyResult(**out.get()))
    for process in processes:
        process.join()
    return sorted(results, key=lambda result: result.rank)


if __name__ == "__main__":
    run(json.loads(Path(sys.argv[1]).read_text()))
