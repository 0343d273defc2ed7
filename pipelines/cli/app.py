"""The command line application: its help screen, the options that commands share, and the exit codes."""

import logging
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from veilmeans.schemas.config import JobConfig, parse_config, read_config
from veilmeans.schemas.errors import ConfigError

SECTIONS = {
    "Commands": ("init", "invite", "join", "inspect", "plan", "train", "results"),
    "More commands, each with --help": (
        "align",
        "offline",
        "predict",
        "reveal",
        "prepare",
        "status",
        "report",
        "config",
    ),
}
"""The commands in the order of the help screen."""
BRIEF = ("sweep", "audit", "openings", "accept", "refuse", "propose", "gateway", "demo", "version")
"""Commands that the help screen only names."""
EXIT_CODES = (
    "Exit codes: 0 done, 1 unexpected, 2 configuration, 3 input data, 4 handshake, 5 a peer is absent or "
    "busy with another run, 6 a message was refused, 7 certificate, 8 storage, 130 interrupted."
)
_OPTIONS = "-v (--verbose: also log Beam's messages), --install-completion, --help"


class OneScreenHelp(TyperGroup):
    """The top level, whose help fits on one screen of 80 × 24 characters."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write usage, what the program is, the commands in their sections, and the options."""
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        formatter.write("\n")
        for title, names in SECTIONS.items():
            formatter.write(f"{title}:\n")
            for name in names:
                formatter.write(f"  {name:<9}{self.commands[name].get_short_help_str(80)}\n")
        formatter.write(f"  {', '.join(BRIEF)}\n")
        formatter.write(f"Options: {_OPTIONS}\n")


app = typer.Typer(
    cls=OneScreenHelp,
    help="K-means for companies that may not show each other their data. Begin with `veilmeans init` in an empty "
    "folder: it prints the commands up to a result.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
_CONFIG_HELP = "Write and change configurations, keys and certificates. No data are sent."
config_app = typer.Typer(help=_CONFIG_HELP, no_args_is_help=True, rich_markup_mode=None)
app.add_typer(config_app, name="config", short_help="Write and change configurations and keys.")
Config = Annotated[Path, typer.Option("--config", "-c", help="this party's configuration (YAML)")]
_RUN_HELP = "the run's name, instead of the configured one"
Run = Annotated[str | None, typer.Option("--run", help=_RUN_HELP)]
_SET_HELP = "a field for this command only, such as kmeans.clusters=3; may be given several times"
Changes = Annotated[list[str] | None, typer.Option("--set", help=_SET_HELP, metavar="FIELD=VALUE")]
Configs = Annotated[list[Path], typer.Option("--config", "-c", help="a configuration; may be given several times")]
_DEALER_HELP = "name of a dealer, if you have one; without, the parties make their triples themselves"
Dealer = Annotated[str | None, typer.Option(help=_DEALER_HELP)]
DryRun = Annotated[bool, typer.Option("--dry-run", help="check, print what would be done, write and send nothing")]
BEAM_FLAGS = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Context settings of commands that pass unknown flags on to Beam."""


@dataclass(frozen=True)
class Configured:
    """A configuration as a command uses it: the file with `--run` and `--set`, which change nothing in the file."""

    file: Path
    text: str
    settings: JobConfig
    options: str
    """what stands behind `--config` on the command line, to be repeated in the next command"""

    @classmethod
    def load(cls, file: Path, run: str | None, changes: list[str] | None) -> "Configured":
        """Read the file, and change the fields that the command line names; relative paths count from the file."""
        before = read_config(file)
        if run is None and not changes:
            return cls(file, before, parse_config(before, file), "")
        from veilmeans.pipelines.configure.edit_config import changed_text, parse_changes

        wanted = parse_changes(changes or ())
        words = [word for each in changes or () for word in ("--set", each)]
        if run is not None:
            if "run" in wanted:
                raise ConfigError("run is set twice, by --run and by --set: name it once")
            wanted, words = {**wanted, "run": run}, ["--run", run, *words]
        text = changed_text(before, wanted, file)
        return cls(file, text, parse_config(text, file), f" {shlex.join(words)}")

    @property
    def facts(self) -> dict[str, Any]:
        """Whose configuration it is, of which run, and where."""
        return {"party": self.settings.party, "run": self.settings.run, "config": str(self.file.resolve())}


@app.callback()
def configure_logging(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="also log Beam's own messages")] = False,
) -> None:
    """Send our own log lines to standard error, and Beam's only if asked for."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)
    if not verbose:
        logging.getLogger("apache_beam").setLevel(logging.CRITICAL)
        logging.getLogger().addFilter(lambda record: record.name != "root")
        for handler in logging.getLogger().handlers:
            handler.addFilter(lambda record: record.name.startswith("veilmeans"))
