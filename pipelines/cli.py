"""The command line. Each command reads a configuration, does one thing, and ends with one sentence if it cannot.

Exit codes: 0 done · 1 unexpected · 2 configuration · 3 input data · 4 handshake · 5 a peer is absent · 6 a message was
refused · 7 certificate · 8 storage · 130 interrupted.
"""

import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from veilmeans import __version__
from veilmeans.schemas.config import load_config
from veilmeans.schemas.errors import VeilmeansError, recall

app = typer.Typer(
    help="K-means for companies that may not show each other their data. "
    "Each party runs its own commands with its own configuration; flags a command does not know go to Beam. "
    "`veilmeans init` writes example configurations and says what to do with them.",
    epilog="Exit codes: 0 done, 1 unexpected, 2 configuration, 3 input data, 4 handshake, 5 a peer is absent, "
    "6 a message was refused, 7 certificate, 8 storage, 130 interrupted.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
Config = Annotated[Path, typer.Option("--config", "-c", help="this party's configuration (YAML)")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="check, say what would be done, write and send nothing")]
Layout = Literal["vertical", "horizontal"]
_TO_BEAM = {"allow_extra_args": True, "ignore_unknown_options": True}


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


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


@app.command()
def keys(
    name: Annotated[str, typer.Option("--name", "-n", help="the party's name, as in every configuration")],
    out: Annotated[Path, typer.Option("--out", "-o", help="folder for the files")] = Path("keys"),
    days: Annotated[int, typer.Option(min=1, max=3650, help="how long the certificate is valid")] = 365,
    dry_run: DryRun = False,
) -> None:
    """Make a party's key, certificate and seed.

    NAME.key and NAME.seed are secrets (mode 0600) and stay here. Send NAME.crt to every peer, and read its fingerprint
    to them over another channel.
    """
    from veilmeans.pipelines.keys import make_keys

    if dry_run:
        from veilmeans.pipelines.dry_run import dry_keys

        typer.echo(dry_keys(name, out, days))
    else:
        typer.echo(make_keys(name, out, days))


@app.command()
def init(
    out: Annotated[Path, typer.Option("--out", "-o", help="folder for the examples")] = Path(),
    parties: Annotated[str, typer.Option(help="the parties' names, with commas between them")] = "payco,shop",
    dealer: Annotated[str, typer.Option(help="the dealer's name")] = "dealer",
    layout: Annotated[
        Layout, typer.Option(help="same rows and own columns, or same columns and own rows")
    ] = "vertical",
    clusters: Annotated[int, typer.Option(min=1, help="k")] = 5,
    dry_run: DryRun = False,
) -> None:
    """Write example configurations, one folder for each party and the dealer, and say what to do with them."""
    from veilmeans.pipelines.init import Example, next_steps, write_examples

    example = Example(tuple(parties.split(",")), dealer, layout=layout, clusters=clusters)
    if dry_run:
        from veilmeans.pipelines.dry_run import dry_init

        typer.echo(dry_init(out, example))
    else:
        write_examples(out, example)
        typer.echo(next_steps(out, example))


@app.command()
def gateway(config: Config, dry_run: DryRun = False) -> None:
    """Run a party's gateway as a process of its own, until it is interrupted.

    Needed where workers are many or come and go (Flink, Dataflow); set `gateway: separate` in the configuration.
    """
    from veilmeans.io.connect import open_gateway
    from veilmeans.io.tls import explained_handshakes

    if dry_run:
        from veilmeans.pipelines.dry_run import dry_gateway

        typer.echo(dry_gateway(load_config(config)))
        return
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    settings = load_config(config)
    with explained_handshakes(), open_gateway(settings) as door:
        logging.getLogger(__name__).info("gateway of %s listens on port %d", settings.party, door.port)
        stopped.wait()


@app.command()
def prepare(config: Config, dry_run: DryRun = False) -> None:
    """Read this party's data, check them, write them as encoded shards. `train` does it, too; nothing is sent."""
    from veilmeans.pipelines.prepare import prepare_data

    settings = load_config(config)
    if dry_run:
        from veilmeans.pipelines.dry_run import dry_prepare

        typer.echo(dry_prepare(settings))
    else:
        typer.echo(prepare_data(settings))


@app.command()
def plan(
    config: Config,
    json_file: Annotated[str | None, typer.Option("--json", help="also as JSON, to this file (-: only that)")] = None,
    compare: Annotated[
        str | None, typer.Option(help="beside what this run has measured (its name; .: the configured run)")
    ] = None,
) -> None:
    """Show what a run would do and what it costs, from the configuration alone: no data, no store, nothing is sent.

    Steps, rounds, bytes, triples, disk, time on a LAN and a WAN, engines and why; with --compare beside a run's report.
    """
    settings = load_config(config)
    from veilmeans.pipelines.plan_command import run_plan

    run_plan(settings, json_file, compare)


@app.command()
def inspect(config: Config) -> None:
    """Show this party how its own data would be used: columns, encoding, ranges, scaling. Nothing is sent."""
    settings = load_config(config)
    from veilmeans.pipelines.inspect import show_data

    Console().print(show_data(settings))


@app.command(context_settings=_TO_BEAM)
def train(context: typer.Context, config: Config, dry_run: DryRun = False) -> None:
    """Take part in K-means. Every party runs it; start it again to go on after a mishap.

    Reads kmeans.data, agrees with the others on every parameter, iterates on shares with a checkpoint after each
    iteration, and opens at the end what kmeans.reveal names.
    """
    settings = load_config(config).with_flags(context.args)
    if dry_run:
        from veilmeans.pipelines.plan_kmeans import plan_train
        from veilmeans.pipelines.show_plan import show_plan

        Console().print(show_plan(plan_train(settings)))
    else:
        from veilmeans.pipelines.train import run_train

        typer.echo(f"results: {run_train(settings)}")


@app.command(context_settings=_TO_BEAM)
def reveal(context: typer.Context, config: Config, dry_run: DryRun = False) -> None:
    """Open more of a finished run: what kmeans.reveal names now, if every party runs this with the same policy."""
    settings = load_config(config).with_flags(context.args)
    from veilmeans.pipelines.later import run_reveal

    if dry_run:
        from veilmeans.pipelines.dry_job import dry_reveal

        typer.echo(dry_reveal(settings))
        return
    for what, value in run_reveal(settings).items():
        typer.echo(f"{what}: {value}")


@app.command()
def status(config: Config) -> None:
    """Show how far this party's run has come, from its own files. Nothing is sent."""
    settings = load_config(config)
    from veilmeans.pipelines.status import show_status

    Console().print(show_status(settings))


@app.command(context_settings=_TO_BEAM)
def sums(context: typer.Context, config: Config, dry_run: DryRun = False) -> None:
    """Take part in secure column sums. Start it again to go on after a mishap."""
    settings = load_config(config).with_flags(context.args)
    from veilmeans.pipelines.plan import plan_sums
    from veilmeans.pipelines.sums import run_sums

    if dry_run:
        Console().print(plan_sums(settings))
    else:
        typer.echo(str(run_sums(settings)))


@app.command(context_settings=_TO_BEAM)
def offline(context: typer.Context, config: Config, dry_run: DryRun = False) -> None:
    """Make the store of correlated randomness that runs use up. Every party and the dealer run it once.

    It knows shapes, never data. Start it again to go on after a mishap.
    """
    settings = load_config(config).with_flags(context.args)
    from veilmeans.pipelines.offline import run_offline

    if dry_run:
        from veilmeans.pipelines.dry_job import dry_offline

        typer.echo(dry_offline(settings))
        return
    made = run_offline(settings)
    typer.echo(
        f"the store {made.store!r} serves {made.runs:,} runs of {made.iterations:,} iterations, {made.rows:,} rows"
    )


@app.command()
def demo(
    folder: Annotated[Path, typer.Option(help="where configurations, keys, data and results go")] = Path("demo"),
    rows: Annotated[int, typer.Option(min=100, help="made-up transactions")] = 10_000,
    exchange: Annotated[str, typer.Option(help="gateway or files")] = "gateway",
    dry_run: DryRun = False,
) -> None:
    """A payment company and a merchant find fraud that neither sees alone, as separate processes on this machine."""
    from veilmeans.pipelines.demo import run_demo

    if dry_run:
        from veilmeans.pipelines.dry_run import dry_demo

        typer.echo(dry_demo(folder, rows, exchange))
    else:
        run_demo(folder, rows, exchange)


def main() -> None:
    """Run a command; end with one sentence and an exit code, never with a traceback for a user's mistake."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if os.environ.get("VEILMEANS_DEBUG"):
            raise
        known = recall(error) or VeilmeansError(
            f"unexpected {type(error).__name__}; set VEILMEANS_DEBUG=1 to see where, and please report it"
        )
        print(f"error: {known.sentence}", file=sys.stderr)
        sys.exit(known.code)


if __name__ == "__main__":
    main()
