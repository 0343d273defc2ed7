"""Packages that others import wherever they find them, and that no command uses."""

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec

UNUSED = frozenset({"pandas", "torch", "IPython", "pymongo"})
"""Imported by Arrow (pandas, at the first array) and by Beam (all of them): up to three seconds at every start."""


class NotInstalled(MetaPathFinder):
    """Let some packages seem not to be installed: those that import them do without."""

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        if name.partition(".")[0] in UNUSED:
            raise ModuleNotFoundError(f"{name} is not used by this command", name=name)
        return None


def skip_unused_modules() -> None:
    """Import none of the unused packages in this process from now on."""
    if not any(isinstance(finder, NotInstalled) for finder in sys.meta_path):
        sys.meta_path.insert(0, NotInstalled())
