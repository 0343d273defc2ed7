"""Party processes on this machine: a failure is reported, and no process is left running."""

import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.fault_injection import PATIENCE, wait_for
from veilmeans.pipelines.configure.config_template import TemplateValues, write_trial
from veilmeans.pipelines.configure.edit_config import set_fields
from veilmeans.pipelines.local import fork_server as forks
from veilmeans.pipelines.local.party_processes import (
    CONFIG,
    LOG,
    TrialFolder,
    free_addresses,
    new_folder,
    run_parties,
)
from veilmeans.schemas.config import load_config
from veilmeans.schemas.errors import VeilmeansError

pytestmark = pytest.mark.processes
MEMBERS = ("payco", "shop", "dealer")
SCRIPT = """
import sys
from pathlib import Path
from veilmeans.pipelines.local.party_processes import run_parties
print("begun", flush=True)
run_parties(Path(sys.argv[1]), "offline", ("payco", "shop"))
"""
"""No `__main__` guard, as in a notebook. The two parties wait for a dealer that does not start."""


@pytest.fixture
def trial(tmp_path: Path) -> Path:
    write_trial(tmp_path, TemplateValues(dealer="dealer"))
    addresses = free_addresses(MEMBERS)
    set_fields({tmp_path / name / CONFIG: {**addresses[name], "kmeans.rows": 100} for name in MEMBERS})
    return tmp_path


def groups() -> set[int]:
    """All process groups of this machine."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            found.add(int(stat.read_text().rpartition(")")[2].split()[2]))
        except OSError:
            continue
    return found


def test_the_first_failure_is_raised_and_the_other_parties_are_ended(trial: Path) -> None:
    """A server is used again as long as no command fails. The parties would wait ten minutes for the dealer."""
    forks.close_idle_servers()
    run_parties(trial, "plan", ("payco", "shop"))
    assert "100 rows × 8 columns" in (trial / "payco" / LOG).read_text()
    (server,) = forks._IDLE
    (trial / "dealer" / CONFIG).unlink()
    with pytest.raises(VeilmeansError, match=rf"dealer .*{CONFIG}"):
        run_parties(trial, "offline", MEMBERS)
    assert not forks._IDLE
    wait_for(lambda: server._process.pid not in groups())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_parties_end_with_the_process_that_started_them(trial: Path, number: signal.Signals) -> None:
    script = trial / "script.py"
    script.write_text(SCRIPT)
    caller = subprocess.Popen(
        [sys.executable, str(script), str(trial)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # tests in the background may ignore it
    )
    try:
        wait_for(lambda: (trial / "payco" / "storage").exists() and (trial / "shop" / "storage").exists())
        (server,) = children(caller.pid)
        assert len(children(server)) == 2
        caller.send_signal(number)
        _, error = caller.communicate(timeout=PATIENCE)
    finally:
        caller.kill()
    assert ("KeyboardInterrupt" in error) == (number == signal.SIGINT)
    wait_for(lambda: server not in groups())


def children(process: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def test_a_killed_server_is_reported_and_not_used_again(trial: Path) -> None:
    forks.close_idle_servers()
    server = forks.ForkServer()
    forks._IDLE.append(server)
    os.killpg(server._process.pid, signal.SIGKILL)
    server._process.wait()
    with pytest.raises(VeilmeansError, match="killed"):
        run_parties(trial, "version", ("payco",))
    assert server not in forks._IDLE


def test_a_temporary_folder_is_removed_with_its_owner_and_not_with_a_copy() -> None:
    trial = TrialFolder()
    path = trial.path
    copied = pickle.loads(pickle.dumps(trial))  # noqa: S301
    assert copied.path == path
    del copied
    assert path.stat().st_mode & 0o777 == 0o700
    del trial
    assert not path.exists()


def test_a_folder_of_the_user_is_kept_and_never_used_twice(tmp_path: Path) -> None:
    paths = [TrialFolder(tmp_path / "here").path for _ in range(2)]
    assert [path.name for path in paths] == ["fit-1", "fit-2"]
    assert all(path.exists() for path in paths)
    assert new_folder(tmp_path, "fit").name == "fit-1"


def test_everyone_has_the_addresses_on_which_the_others_listen(trial: Path) -> None:
    configs = {name: load_config(trial / name / CONFIG) for name in MEMBERS}
    assert len({config.listen for config in configs.values()}) == len(MEMBERS)
    for config in configs.values():
        assert {name: peer.address for name, peer in config.peers.items()} == {
            name: other.listen for name, other in configs.items() if name != config.party
        }
