"""Run the command `veilmeans` as `python -m veilmeans`."""

from veilmeans.pipelines.cli.main import run

run()
