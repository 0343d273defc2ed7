"""SPU's own virtual environment."""

from pathlib import Path

from benchmarks.peer_environment import peer_python

_HERE = Path(__file__).parent
PROGRAM = _HERE / "spu_program.py"


def spu_python() -> Path:
    """The Python in which SPU runs."""
    return peer_python("spu", _HERE / "requirements.txt")
