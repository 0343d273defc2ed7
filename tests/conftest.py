"""The order of the files: those that take longest come first, so that none is left to one process at the end."""

import gc

import pytest

LONGEST = (
    "test_kill_and_resume",
    "test_same_shares_everywhere",
    "test_reveal",
    "test_predict",
    "test_leaks",
    "test_iteration",
    "test_bad_input",
    "test_plan_vs_run",
    "test_faults",
    "test_refused_messages",
    "test_transcripts",
    "test_offline",
    "test_custom_protocol",
    "test_handshake",
    "test_he_runs",
    "test_estimator",
    "test_readme",
    "test_quickstart",
    "test_new_user",
    "test_notebook",
    "test_demo",
    "test_sklearn",
    "test_party_processes",
)


def pytest_configure(config: pytest.Config) -> None:
    config.option.loadscopereorder = False  # xdist would begin with the files of the most tests


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))


def pytest_collection_finish() -> None:
    """What has been imported for the tests is not garbage: no collection need look through it."""
    gc.collect()
    gc.freeze()
