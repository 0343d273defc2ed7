"""SPU's own virtual environment below `.cache/`, made from `requirements.txt` when it is first needed."""

import subprocess
import sys
import venv
from pathlib import Path

_HERE = Path(__file__).parent
_REQUIREMENTS = _HERE / "requirements.txt"
_FOLDER = _HERE.parents[1] / ".cache" / "spu"
PROGRAM = _HERE / "spu_program.py"


def spu_python() -> Path:
    """The Python in which SPU runs. The environment is made anew where another version of the requirements made it."""
    ready, python = _FOLDER / "installed.txt", _FOLDER / "bin" / "python"
    wanted = f"{sys.version}\n{_REQUIREMENTS.read_text()}"
    if ready.exists() and ready.read_text() == wanted:
        return python
    print(f"installing SPU into {_FOLDER}", flush=True)
    venv.create(_FOLDER, clear=True, with_pip=True)
    install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement", str(_REQUIREMENTS)]
    subprocess.run([str(python), *install], check=True)
    ready.write_text(wanted)
    return python
