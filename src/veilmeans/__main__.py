"""`python -m veilmeans`: the same as the command `veilmeans`."""

from veilmeans.pipelines.cli.main import run

run()
