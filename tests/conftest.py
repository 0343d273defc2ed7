"""Hooks for all tests: the order of files, and a check that only tests marked `processes` start Python processes.

Examples of hypothesis have no time limit: no test asserts a time.
"""

import gc
import sys
from collections import Counter
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

_TESTS = Path(__file__).parent
_ROOMS = ("runs", "pipelines", "transforms", "io", "crypto", "schemas", "documents", "benchmarks")
_running: list[pytest.Item] = []
"""The test that runs now, with its fixtures."""


def pytest_configure(config: pytest.Config) -> None:
    config.option.loadscopereorder = False  # xdist would begin with the files of the most tests
    settings.register_profile("untimed", deadline=None)
    settings.load_profile("untimed")
    sys.addaudithook(_check_command)
    start = BaseProcess.start

    def checked_start(process: BaseProcess) -> None:
        _check_marker(process.name)
        start(process)

    BaseProcess.start = checked_start


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark whole runs as slow. Put files first that take long, so that no test process is left with one at the end.

    Those are files with the most tests that start processes, then those of whole runs and of the upper rooms.
    """
    for item in items:
        if item.path.is_relative_to(_TESTS / "runs"):
            item.add_marker(pytest.mark.slow)
    functions = {(item.path, getattr(item, "originalname", item.name)) for item in items if _is_marked(item)}
    processes = Counter(path for path, _ in functions)
    items.sort(key=lambda item: (-processes[item.path], _ROOMS.index(item.path.relative_to(_TESTS).parts[0])))


def pytest_collection_finish() -> None:
    """Exempt everything that was imported for the tests from garbage collection."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _running.append(item)
    try:
        return (yield)
    finally:
        _running.clear()


def _is_marked(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) for name in ("processes", "flink", "prism", "dataflow", "workers"))


def _check_command(event: str, details: tuple[Any, ...]) -> None:
    if event == "subprocess.Popen":
        program = Path(str(details[0] or details[1][0])).name
        if program.startswith(("python", "veilmeans")):
            _check_marker(program)


def _check_marker(process: str) -> None:
    for item in _running:
        if not _is_marked(item):
            raise RuntimeError(f"{item.nodeid} starts the process {process}: mark it with pytest.mark.processes")
