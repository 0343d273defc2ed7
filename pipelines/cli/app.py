"""The application on the command line, and the options that its commands share."""

import logging
import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="K-means for companies that may not show each other their data. "
    "Each party runs its own commands with its own configuration; flags a command does not know go to Beam. "
    "Begin with `veilmeans init` in an empty folder: it prints the commands from there to a result.",
    epilog="Exit codes: 0 done, 1 unexpected, 2 configuration, 3 input data, 4 handshake, 5 a peer is absent, "
    "6 a message was refused, 7 certificate, 8 storage, 130 interrupted.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
Config = Annotated[Path, typer.Option("--config", "-c", help="this party's configuration (YAML)")]
Configs = Annotated[list[Path], typer.Option("--config", "-c", help="a configuration; may be given several times")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="check, say what would be done, write and send nothing")]
TO_BEAM = {"allow_extra_args": True, "ignore_unknown_options": True}
"""For commands whose other flags go to Beam."""


@app.callback()
def common(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="log Beam's own messages, too")] = False,
) -> None:
    """Set up logging: our own lines to standard error, Beam's only when asked for."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)
    if not verbose:
        logging.getLogger("apache_beam").setLevel(logging.CRITICAL)
        logging.getLogger().addFilter(lambda record: record.name != "root")
        for handler in logging.getLogger().handlers:
            handler.addFilter(lambda record: record.name.startswith("veilmeans"))
