"""Party processes on this machine: a failure is told, and nobody is left behind."""

import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.fault_injection import PATIENCE, wait_for
from veilmeans.pipelines.configure.config_template import Example, write_trial
from veilmeans.pipelines.local import fork_server as forks
from veilmeans.pipelines.local.party_processes import (
    CONFIG,
    LOG,
    TrialFolder,
    change_config,
    fresh_ports,
    new_folder,
    run_parties,
)
from veilmeans.schemas.config import load_config
from veilmeans.schemas.errors import ConfigError, VeilmeansError

MEMBERS = ("payco", "shop", "dealer")
SCRIPT = """
import sys
from pathlib import Path
from veilmeans.pipelines.local.party_processes import run_parties
print("begun", flush=True)
run_parties(Path(sys.argv[1]), "offline", ("payco", "shop"))
"""
"""No guard, as a notebook has none. The two wait for a dealer who never comes."""


@pytest.fixture
def trial(tmp_path: Path) -> Path:
    write_trial(tmp_path, Example())
    ports = fresh_ports(MEMBERS)
    for name in MEMBERS:
        change_config(tmp_path / name / CONFIG, {**ports[name], "kmeans": {"rows": 100}})
    return tmp_path


def groups() -> set[int]:
    """The process groups of this machine."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            found.add(int(stat.read_text().rpartition(")")[2].split()[2]))
        except OSError:
            continue
    return found


def test_who_fails_first_is_told_and_the_others_are_ended(trial: Path) -> None:
    """A server serves again as long as all goes well. The parties would wait for the dealer for ten minutes."""
    forks.close_idle()
    run_parties(trial, "plan", ("payco", "shop"))
    assert "100 rows × 8 columns" in (trial / "payco" / LOG).read_text()
    (server,) = forks._IDLE
    (trial / "dealer" / CONFIG).unlink()
    with pytest.raises(VeilmeansError, match=r"dealer ended with error: the configuration .* cannot be read"):
        run_parties(trial, "offline", MEMBERS)
    assert not forks._IDLE
    wait_for(lambda: server._process.pid not in groups())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_parties_end_with_whoever_started_them(trial: Path, number: signal.Signals) -> None:
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


def test_a_server_that_is_gone_is_told_and_not_used_again(trial: Path) -> None:
    forks.close_idle()
    server = forks.ForkServer()
    forks._IDLE.append(server)
    os.killpg(server._process.pid, signal.SIGKILL)
    server._process.wait()
    with pytest.raises(VeilmeansError, match="ended by somebody else"):
        run_parties(trial, "version", ("payco",))
    assert server not in forks._IDLE


def test_a_temporary_place_goes_with_its_owner_and_not_with_a_copy() -> None:
    place = TrialFolder()
    path = place.path
    copied = pickle.loads(pickle.dumps(place))  # noqa: S301
    assert copied.path == path
    del copied
    assert path.stat().st_mode & 0o777 == 0o700
    del place
    assert not path.exists()


def test_a_place_of_the_user_is_kept_and_never_used_twice(tmp_path: Path) -> None:
    paths = [TrialFolder(tmp_path / "here").path for _ in range(2)]
    assert [path.name for path in paths] == ["fit-1", "fit-2"]
    assert all(path.exists() for path in paths)
    assert new_folder(tmp_path, "fit").name == "fit-1"


def test_a_configuration_is_changed_field_by_field_and_checked(trial: Path) -> None:
    file, other = trial / "payco" / CONFIG, trial / "payco" / "other.yaml"
    before = load_config(file)
    change_config(file, {"run": "other", "kmeans": {"tol": 0.5, "id": None}}, other)
    assert load_config(file) == before
    changed = load_config(other)
    assert (changed.run, changed.required_kmeans.tol, changed.required_kmeans.id) == ("other", 0.5, None)
    assert changed.required_kmeans.rows == 100
    with pytest.raises(ConfigError, match=r"kmeans\.clusters"):
        change_config(file, {"kmeans": {"clusters": 0}})


def test_ports_fit_together() -> None:
    ports = fresh_ports(MEMBERS)
    for name, fields in ports.items():
        assert {peer: at["address"] for peer, at in fields["peers"].items()} == {
            peer: other["listen"] for peer, other in ports.items() if peer != name
        }
