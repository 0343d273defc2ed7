"""The allocator of a command's process."""

import os
import subprocess
import sys

import pytest


def allocator(variables: dict[str, str]) -> str:
    """The allocator of Arrow in a process that has imported the commands."""
    program = "import veilmeans.pipelines.cli.main, pyarrow; print(pyarrow.default_memory_pool().backend_name)"
    environment = {name: value for name, value in os.environ.items() if name != "ARROW_DEFAULT_MEMORY_POOL"} | variables
    command = [sys.executable, "-c", program]
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, env=environment).stdout


@pytest.mark.processes
def test_arrow_shares_malloc_in_commands() -> None:
    assert allocator({}) == "system\n"


@pytest.mark.processes
def test_the_environment_may_name_another_allocator() -> None:
    assert allocator({"ARROW_DEFAULT_MEMORY_POOL": "mimalloc"}) == "mimalloc\n"
