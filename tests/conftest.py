"""The order of the files: those that take longest come first, so that none is left to one process at the end."""

import gc

import pytest

LONGEST = (
    "test_train_chaos",
    "test_train_engines",
    "test_reveal",
    "test_predict",
    "test_train_leaks",
    "test_kmeans",
    "test_bad_input",
    "test_plan_compare",
    "test_chaos",
    "test_refusals",
    "test_transcripts",
    "test_offline",
    "test_sums",
    "test_handshake",
    "test_sparse_train",
    "test_estimator",
    "test_readme",
    "test_quickstart",
    "test_new_user",
    "test_notebook",
    "test_demo",
    "test_sklearn",
    "test_local",
)


def pytest_configure(config: pytest.Config) -> None:
    config.option.loadscopereorder = False  # xdist would begin with the files of the most tests


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))


def pytest_collection_finish() -> None:
    """What has been imported for the tests is not garbage: no collection need look through it."""
    gc.collect()
    gc.freeze()
