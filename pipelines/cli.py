"""The command line. Each command reads a configuration, does one thing, and ends with one sentence if it cannot.

Exit codes: 0 done · 1 unexpected · 2 configuration · 3 input data · 4 handshake · 5 a peer is absent · 6 a message was
refused · 7 certificate · 8 storage · 130 interrupted.
"""

import logging
import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer
from rich.console import Console

from veilmeans import __version__
from veilmeans.schemas.config import JobConfig, load_config
from veilmeans.schemas.errors import ConfigError, VeilmeansError, recall

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
def fingerprint(
    certificates: Annotated[list[Path], typer.Argument(help="files that peers sent", metavar="FILE...")],
) -> None:
    """Show the fingerprints of certificates, to compare them with what their owners read out."""
    from veilmeans.pipelines.keys import show_fingerprint

    for file in certificates:
        typer.echo(show_fingerprint(file))


@app.command()
def init(
    out: Annotated[Path, typer.Option("--out", "-o", help="folder for the examples")] = Path(),
    parties: Annotated[str, typer.Option(help="the parties' names, with commas between them")] = "payco,shop",
    dealer: Annotated[str, typer.Option(help="the dealer's name")] = "dealer",
    layout: Annotated[
        Layout, typer.Option(help="same rows and own columns, or same columns and own rows")
    ] = "vertical",
    clusters: Annotated[int, typer.Option(min=1, help="k")] = 5,
    port: Annotated[int, typer.Option(min=1, max=65000, help="the first party's port; the others' follow")] = 7101,
    trial: Annotated[
        bool, typer.Option("--trial/--apart", help="all on this machine with keys made, or each with keys of its own")
    ] = True,
    dry_run: DryRun = False,
) -> None:
    """Write configurations, one folder for each party and the dealer, and print the commands from there to a result."""
    from veilmeans.pipelines.init import Example, write_examples, write_trial
    from veilmeans.pipelines.steps import apart_steps, trial_steps

    names = tuple(parties.split(","))
    ports = {name: port + i for i, name in enumerate((*names, dealer))}
    example = Example(names, dealer, layout=layout, clusters=clusters, ports=ports, timeout=120 if trial else 600)
    if dry_run:
        from veilmeans.pipelines.dry_run import dry_init

        typer.echo(dry_init(out, example, trial))
    else:
        (write_trial if trial else write_examples)(out, example)
        typer.echo((trial_steps if trial else apart_steps)(out, example))


@app.command("set")
def set_(
    config: Configs,
    changes: Annotated[list[str], typer.Argument(help="such as kmeans.clusters=3", metavar="FIELD=VALUE...")],
    dry_run: DryRun = False,
) -> None:
    """Change fields of a configuration in place; nothing is written if it would be wrong then.

    The value is YAML: 3, true, null, [a, b], {payco: 4, shop: 2}. Comments and order stay.
    """
    from veilmeans.pipelines.set_fields import parse_changes, set_fields

    changed = set_fields(dict.fromkeys(config, parse_changes(changes)), dry_run)
    typer.echo(f"would change:\n{changed}" if dry_run else f"changed: {', '.join(map(str, config))}")


@app.command()
def fill(config: Configs, dry_run: DryRun = False) -> None:
    """For a trial on one machine: look at all parties' data, set rows, columns and categories in all configurations.

    Parties that do not share a machine use `veilmeans inspect` and `veilmeans set`.
    """
    from veilmeans.pipelines.fill import fill_in

    typer.echo(fill_in(config, dry_run))


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
    """Show this party how its own data would be used: columns, encoding, ranges, scaling. Nothing is sent.

    It ends with the commands that make the configurations fit the data.
    """
    settings = load_config(config)
    from veilmeans.pipelines.advise import advise
    from veilmeans.pipelines.inspect import show_data

    advice = advise(settings, config)
    Console().print(show_data(advice.config))
    typer.echo(advice.text())


@app.command(context_settings=_TO_BEAM)
def train(context: typer.Context, config: Config, dry_run: DryRun = False) -> None:
    """Take part in K-means. Every party runs it; start it again to go on after a mishap.

    Reads kmeans.data, agrees with the others on every parameter, iterates on shares with a checkpoint after each
    iteration, and opens at the end what kmeans.reveal names.
    """
    settings = load_config(config).with_flags(context.args)
    if dry_run:
        _show_plan(settings, predicts=False)
    else:
        from veilmeans.pipelines.html_report import write_report
        from veilmeans.pipelines.train import run_train

        typer.echo(f"results: {run_train(settings)}; `veilmeans results --config {config}` shows them")
        typer.echo(f"report: {write_report(settings, config.resolve().parent)}")


def _show_plan(settings: JobConfig, predicts: bool) -> None:
    from veilmeans.pipelines.plan_kmeans import plan_train
    from veilmeans.pipelines.prepare import check_command
    from veilmeans.pipelines.show_plan import show_plan

    check_command(settings, predicts)
    Console().print(show_plan(plan_train(settings)))


@app.command(context_settings=_TO_BEAM)
def predict(
    context: typer.Context,
    config: Config,
    dry_run: DryRun = False,
    new: Annotated[
        str | None, typer.Option(help="write the configuration of a prediction of this name, and do nothing else")
    ] = None,
    data: Annotated[str | None, typer.Option(help="with --new: our new rows (a dealer has none)")] = None,
    rows: Annotated[
        str | None, typer.Option(help="with --new: how many; horizontal: of each party, with commas between them")
    ] = None,
    write: Annotated[Path | None, typer.Option(help="with --new: the file; none: NAME.yaml beside --config")] = None,
) -> None:
    """Assign new rows to the clusters of a trained model. Nobody sees a centroid; every party runs it.

    First, at every party and the dealer, write the prediction's configuration from the trained one:
    `veilmeans predict --config payco.yaml --new march --data march.csv --rows 5000` writes march.yaml. Then, as for a
    training, `veilmeans offline --config march.yaml` at everyone, and `veilmeans predict --config march.yaml` at every
    party; start it again to go on after a mishap.

    New rows become numbers exactly as the trained ones did: same columns, categories, scale and means. Opened are the
    rows' clusters, to whom kmeans.reveal.assignments names.
    """
    if new is not None:
        from veilmeans.pipelines.init_predict import write_prediction

        typer.echo(write_prediction(config, new, data, rows, write, dry_run))
        return
    if (data, rows, write) != (None, None, None):
        raise ConfigError("--data, --rows and --write belong to --new, which writes the configuration of a prediction")
    settings = load_config(config).with_flags(context.args)
    if dry_run:
        _show_plan(settings, predicts=True)
    else:
        from veilmeans.pipelines.html_report import write_report
        from veilmeans.pipelines.predict import run_predict

        typer.echo(f"results: {run_predict(settings)}; `veilmeans results --config {config}` shows them")
        typer.echo(f"report: {write_report(settings, config.resolve().parent)}")


@app.command(context_settings=_TO_BEAM)
def reveal(context: typer.Context, config: Config, dry_run: DryRun = False) -> None:
    """Open more of a finished run: what kmeans.reveal names now, if every party runs this with the same policy."""
    settings = load_config(config).with_flags(context.args)
    from veilmeans.pipelines.html_report import write_report
    from veilmeans.pipelines.later import run_reveal

    if dry_run:
        from veilmeans.pipelines.dry_job import dry_reveal

        typer.echo(dry_reveal(settings))
        return
    for what, value in run_reveal(settings).items():
        typer.echo(f"{what}: {value}")
    typer.echo(f"report: {write_report(settings, config.resolve().parent)}")


@app.command()
def report(config: Config, dry_run: DryRun = False) -> None:
    """Write report.html of this party's run anew, from its own files: costs, stages, what was opened to whom."""
    settings = load_config(config)
    from veilmeans.pipelines.html_report import report_page, write_report

    if dry_run:
        size = len(report_page(settings, config.resolve().parent).encode())
        typer.echo(f"would write {settings.run_folder / 'report.html'}, {size:,} bytes")
    else:
        typer.echo(f"report: {write_report(settings, config.resolve().parent)}")


@app.command()
def status(config: Config) -> None:
    """Show how far this party's run has come, from its own files. Nothing is sent."""
    settings = load_config(config)
    from veilmeans.pipelines.status import show_status

    Console().print(show_status(settings))


@app.command()
def results(
    config: Config,
    csv: Annotated[Path | None, typer.Option(help="write each row's cluster to this file, too")] = None,
) -> None:
    """Show what a finished run has opened to this party: sizes of clusters, centroids, files. Nothing is sent."""
    settings = load_config(config)
    from veilmeans.pipelines.outcome import show_results, write_assignments_csv

    show_results(settings, Console())
    if csv is not None:
        write_assignments_csv(settings, csv)
        typer.echo(f"wrote {csv}")


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


def run() -> NoReturn:
    """A command as a process of its own, which ends at once when it is done.

    Otherwise the gRPC in Arrow Flight would wait two seconds at every exit for clients that nobody needs any more.
    """
    code = 0
    try:
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # who read it may be gone
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    run()
