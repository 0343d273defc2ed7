"""Virtual environments below `.cache/` for programs that the benchmarks compare with, which need other packages."""

import subprocess
import sys
import venv
from pathlib import Path

_CACHE = Path(__file__).parents[1] / ".cache"


def peer_python(name: str, requirements: Path) -> Path:
    """The Python of an environment. It is made anew where another version of the requirements made it."""
    folder = _CACHE / name
    ready, python = folder / "installed.txt", folder / "bin" / "python"
    wanted = f"{sys.version}\n{requirements.read_text()}"
    if ready.exists() and ready.read_text() == wanted:
        return python
    print(f"installing {name} into {folder}", flush=True)
    venv.create(folder, clear=True, with_pip=True)
    install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement", str(requirements)]
    subprocess.run([str(python), *install], check=True)
    ready.write_text(wanted)
    return python
