"""What tags of files, transcripts and commitments cost: the online time of one training with and without them.

Without them means: in this benchmark's processes only, files are not authenticated, messages are not recorded (nor
hashed a second time), nothing is synced for the transcript, and openings have no round of commitments. The farewell is
signed in both. Runs alternate; the medians are compared.

python -m benchmarks.audit_cost --without COMMAND FILE      run a command without them
"""

import hmac
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from benchmarks.figures import Figure, parser, publish

REPEATS = 7
MOST_PERCENT = 5.0
_WITHOUT = ("-m", "benchmarks.audit_cost", "--without")


def run_without(command: str, file: Path) -> NoReturn:
    """Run a command of veilmeans without tags, transcript and commitments."""
    from veilmeans.transforms.primitives import share_and_open

    share_and_open.commit_first = lambda opening: (opening,)  # type: ignore[assignment, return-value]  # before others import it
    from veilmeans.io.exchange import connections
    from veilmeans.io.files import tagged_files
    from veilmeans.io.storage.checkpoints import Checkpoints
    from veilmeans.pipelines.cli.main import run

    unchecked: Any = SimpleNamespace(compare_digest=lambda *_: True, digest=hmac.digest)
    tagged_files.hmac = unchecked  # type: ignore[attr-defined]
    tagged_files._tag = lambda *_: bytes(tagged_files.TAG_SIZE)
    Checkpoints._tag = lambda *_: bytes(64)  # type: ignore[method-assign]
    connections.open_transcript = lambda *_: None  # type: ignore[attr-defined, assignment]
    sys.argv = ["veilmeans", command, "--config", str(file)]
    run()


def measure(folder: Path, repeats: int) -> list[Figure]:
    from benchmarks.kmeans_runs import PARTIES, Shape, run_command, write_inputs
    from benchmarks.world_copies import copy_world, train_both

    shape = Shape(rows=100_000, features=2, clusters=5, iterations=10)
    worlds = {"with": folder / "with", "without": folder / "without"}
    launchers = {"with": {}, "without": dict.fromkeys(PARTIES, (*_WITHOUT, "train"))}
    for world in worlds.values():
        write_inputs(world, shape)
    run_command(worlds["with"], "offline", shape.members)
    files = [worlds["without"] / name / "config.yaml" for name in shape.members]
    making = [subprocess.Popen([sys.executable, *_WITHOUT, "offline", str(file)]) for file in files]
    codes = [process.wait() for process in making]
    if any(codes):
        raise SystemExit("the triples could not be made")
    seconds: dict[str, list[float]] = {name: [] for name in worlds}
    processor: dict[str, list[float]] = {name: [] for name in worlds}
    for number in range(repeats + 1):
        for name, world in worlds.items():
            with tempfile.TemporaryDirectory(dir=folder) as place:
                before = _processor_seconds()
                taken = train_both(copy_world(world, Path(place) / "copy"), launchers[name])[0]
            if number:  # the first is for the caches
                seconds[name].append(taken)
                processor[name].append(_processor_seconds() - before)
    with_, without = (statistics.median(seconds[name]) for name in ("with", "without"))
    busy, less = (statistics.median(processor[name]) for name in ("with", "without"))
    return [
        Figure("processor time of both commands, with", busy, "s"),
        Figure("processor time of both commands, without", less, "s"),
        Figure("online time, n=10^5, d=2, k=5", with_, "s"),
        Figure("without tags, transcript and commitments", without, "s"),
        Figure("fastest with", min(seconds["with"]), "s"),
        Figure("fastest without", min(seconds["without"]), "s"),
        Figure.at_most("what they cost", 100 * (with_ / without - 1), "%", MOST_PERCENT),
    ]


def _processor_seconds() -> float:
    """Processor seconds of all processes that have ended: on a busy machine they say more than the time that passes."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--without", nargs=2, metavar=("COMMAND", "FILE"))
    arguments.add_argument("--repeats", type=int, default=REPEATS)
    chosen = arguments.parse_args()
    if chosen.without:
        run_without(chosen.without[0], Path(chosen.without[1]))
    with tempfile.TemporaryDirectory(prefix="veilmeans-audit-") as name:
        publish(measure(Path(name), chosen.repeats), chosen.json)


if __name__ == "__main__":
    main()
