"""Kill parties with SIGKILL at random moments of their commands, and compare what remains with an undisturbed run.

For each exchange (gateway, files) and each command (offline, train, reveal, predict) of two parties without a dealer:

  1. the command runs undisturbed on a copy of the parties' folders
  2. on other copies both parties are killed at moments drawn from that run's time, and restarted at once, until the
     command's share of the kills has happened; then they run to their end
  3. all that remains must be the same bytes: triple stores, shares, results, and the digests of all messages

A kill counts if it ended a process that was still running. Seeds are the same in all copies; moments are not.
"""

import hashlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from benchmarks.figures import Figure, parser, publish
from benchmarks.kmeans_runs import PARTIES, Shape, changed_yaml, write_inputs
from benchmarks.world_copies import copy_world
from veilmeans.io.messages.transcript import Transcript
from veilmeans.pipelines.cli.main import main as veilmeans
from veilmeans.pipelines.offline import manifest_of
from veilmeans.pipelines.session.kmeans_from_config import requested_engines, traced_job
from veilmeans.schemas.config import load_config
from veilmeans.transforms.offline.ot_store import StoreMaking

EXCHANGES = ("gateway", "files")
COMMANDS = {"offline": "config", "train": "config", "reveal": "reveal", "predict": "predict"}
"""Each command, in the order in which they need each other, and the name of its configuration."""
_CONFIGS = tuple(dict.fromkeys(COMMANDS.values()))
KILLS_OF_A_START = 4
"""So often each party is killed on one copy."""
_SHAPE = Shape(rows=300, features=4, clusters=3, iterations=3, beam={"rows_per_shard": 160}, provider="iknp")
_NEW_ROWS = 40
_EARLY = 0.7  # of the undisturbed run's time: a restarted command has less to do
_TIMEOUT = 30  # seconds that a party waits for one that is gone: after a kill in a farewell it may be in vain
_PATIENCE = 600.0
_LOOK = 0.003  # seconds between two looks at the processes
_OF_ONE_START = ("report", "signed.", "costs", "collected", ".log", ".part")
"""Parts of names of files with times, an order, a randomised signature, up to where messages were dropped; and of files
that were never completed, which nobody reads."""
_NOT_COMPARED = ("inbox", "scratch", "transcript")
"""Folders of messages (a restart may leave one that nobody needs) and of transcripts, which are compared as chains."""


# The parties' folders.
def write_world(folder: Path, kind: str) -> None:
    """Write both parties' folders, with configurations for all commands, and draw the secrets of both triple stores."""
    write_inputs(folder, _SHAPE)
    for party in PARTIES:
        place = folder / party
        with changed_yaml(place / "config.yaml") as config:
            config["exchange"] |= {"kind": kind, "timeout_s": _TIMEOUT}
            config["kmeans"]["reveal"] = {"inertia": list(PARTIES)}
        shutil.copy(place / "config.yaml", place / "reveal.yaml")
        with changed_yaml(place / "reveal.yaml") as config:
            config["kmeans"]["reveal"] = {"assignments": list(PARTIES), "centroids": list(PARTIES), "columns": "own"}
        shutil.copy(place / "config.yaml", place / "predict.yaml")
        with changed_yaml(place / "predict.yaml") as config:
            config["run"] = config["triples"]["store"] = "new"
            config["kmeans"] |= {"data": "new.parquet", "rows": _NEW_ROWS, "predict": {"model": "first", "margin": 1.0}}
            config["kmeans"]["reveal"] = {"assignments": list(PARTIES)}
        _write_new_rows(place)
        for name in ("config", "predict"):
            _draw_secrets(place / f"{name}.yaml")


def _write_new_rows(place: Path) -> None:
    import pyarrow.parquet as pq

    pq.write_table(pq.read_table(place / "data.parquet").slice(0, _NEW_ROWS), place / "new.parquet")


def _draw_secrets(file: Path) -> None:
    """Draw what a party would draw when it begins to make a store: then all copies make the same."""
    config = load_config(file)
    offline, engines = config.offline(), requested_engines(config)
    plan = traced_job(offline, engines)
    StoreMaking(offline, plan, manifest_of(offline, plan, engines)).secrets()


def remains(folder: Path) -> dict[str, str]:
    """The digest of every file that lasts, and of the messages of every run."""
    found = {}
    for party in PARTIES:
        storage = folder / party / "storage"
        for file in sorted(storage.rglob("*")):
            path = file.relative_to(storage)
            if file.is_file() and not _may_differ(path):
                content = file.read_bytes().replace(str(folder).encode(), b"")  # a copy's own place
                found[f"{party}/{path}"] = hashlib.sha256(content).hexdigest()
        for transcript in sorted(storage.glob("runs/*/transcript/*/")):
            found[f"{party}/{transcript.relative_to(storage)}"] = _messages(transcript)
    return found


def _may_differ(path: Path) -> bool:
    return any(part in path.parts for part in _NOT_COMPARED) or any(part in path.name for part in _OF_ONE_START)


def _messages(folder: Path) -> str:
    """The digest of all lines of a transcript: which messages were sent and received, and what was in them."""
    transcript = Transcript(folder, folder.parents[1].name)
    lines = [line.encode() for number in transcript.iterations() for line in transcript.lines(number)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


# Processes.
@dataclass
class PartyUnderFire:
    """One party's command: started, killed after each of `delays` seconds, and restarted."""

    file: Path
    command: str
    delays: list[float]
    kills: int = 0
    ended: bool = False
    _pid: int = field(init=False)
    _kill_at: float = field(init=False)

    def start(self) -> "PartyUnderFire":
        self._pid = os.fork()
        if self._pid == 0:
            _run(self.command, self.file)
        self._kill_at = time.monotonic() + self.delays.pop(0) if self.delays else float("inf")
        return self

    def look(self) -> None:
        """See whether the process has ended; kill it if its time has come, and restart it."""
        if time.monotonic() >= self._kill_at:
            os.kill(self._pid, signal.SIGKILL)
        pid, status = os.waitpid(self._pid, 0 if time.monotonic() >= self._kill_at else os.WNOHANG)
        if pid == 0:
            return
        code = os.waitstatus_to_exitcode(status)
        if code == -signal.SIGKILL:
            self.kills += 1
            self.start()
        elif code:
            self.ended = True
            output = log_of(self.file).read_text()[-1500:]
            raise SystemExit(f"{self.command} of {self.file} ended with {code}: {output}")
        else:
            self.ended = True

    def end(self) -> None:
        """Kill what is still running."""
        if not self.ended:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)


def log_of(file: Path) -> Path:
    return file.parent / "log.txt"


def _run(command: str, file: Path) -> NoReturn:
    """Run a command in this fork, as a process of its own would."""
    output = os.open(log_of(file), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number in (1, 2):
        os.dup2(output, number)
    sys.argv = ["veilmeans", command, "--config", str(file)]
    code = 1
    try:
        veilmeans()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        os._exit(code)


def run(folder: Path, command: str, delays: Mapping[str, Sequence[float]]) -> tuple[float, int]:
    """Run a command at both parties, under fire; return its seconds and how many kills there were."""
    begin = time.monotonic()
    parties = [
        PartyUnderFire(folder / party / f"{COMMANDS[command]}.yaml", command, list(delays.get(party, ()))).start()
        for party in PARTIES
    ]
    try:
        while not all(party.ended for party in parties):
            for party in parties:
                if not party.ended:
                    party.look()
            if time.monotonic() - begin > _PATIENCE:
                raise SystemExit(f"{command} still runs after {_PATIENCE:g} s: {folder}")
            time.sleep(_LOOK)
    finally:
        for party in parties:
            party.end()
    return time.monotonic() - begin, sum(party.kills for party in parties)


# The experiment.
def strike(before: Path, command: str, quota: int, drawn: random.Random) -> tuple[Path, int, int]:
    """Run a command undisturbed, and under fire until `quota` kills happened; return its folder, kills and copies."""
    after = copy_world(before, before.with_name(f"{before.name}-{command}"), _CONFIGS)
    seconds, _ = run(after, command, {})
    expected, kills, copies = remains(after), 0, 0
    while kills < quota:
        copies += 1
        world = copy_world(before, before.with_name(f"{before.name}-{command}-{copies}"), _CONFIGS)
        left = min(KILLS_OF_A_START, -(-(quota - kills) // 2))
        delays = {party: [drawn.uniform(0, _EARLY * seconds) for _ in range(left)] for party in PARTIES}
        kills += run(world, command, delays)[1]
        found = remains(world)
        different = {name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name)}
        if different:
            raise SystemExit(f"{command}: other bytes after kills in {world}: {', '.join(sorted(different))}")
        shutil.rmtree(world)
    return after, kills, copies


def experiment(folder: Path, kills: int, seed: int) -> Iterator[tuple[str, str, int, int]]:
    """Yield the kills and the copies of each command, over each exchange."""
    drawn = random.Random(seed)  # noqa: S311 (moments of kills)
    quota = -(-kills // (len(EXCHANGES) * len(COMMANDS)))
    for kind in EXCHANGES:
        world = folder / kind
        write_world(world, kind)
        for command in COMMANDS:
            world, happened, copies = strike(world, command, quota, drawn)
            yield kind, command, happened, copies


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--kills", type=int, default=100)
    arguments.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    chosen = arguments.parse_args()
    print(f"seed {chosen.seed}", flush=True)
    total: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="veilmeans-faults-", ignore_cleanup_errors=True) as name:
        for kind, command, kills, copies in experiment(Path(name), chosen.kills, chosen.seed):
            print(f"{kind}, {command}: {kills} kills in {copies} runs, the same bytes", flush=True)
            total[command] += kills
    figures = [Figure(f"SIGKILLs of {command}, same bytes", count, "") for command, count in total.items()]
    publish([*figures, Figure.at_least("SIGKILLs, same bytes", total.total(), "", chosen.kills)], chosen.json)


if __name__ == "__main__":
    main()
