"""Commands of a party with a configuration: look, plan, take part, look at results. What they do is elsewhere."""

import logging
import signal
import threading
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from veilmeans.pipelines.cli.app import TO_BEAM, Config, DryRun, app
from veilmeans.schemas.config import JobConfig, load_config
from veilmeans.schemas.errors import ConfigError


@app.command()
def inspect(config: Config) -> None:
    """Show this party how its own data would be used: columns, encoding, ranges, scaling. Nothing is sent.

    It ends with the commands that make the configurations fit the data.
    """
    settings = load_config(config)
    from veilmeans.pipelines.configure.config_advice import advise
    from veilmeans.pipelines.configure.data_summary import show_data

    advice = advise(settings, config)
    Console().print(show_data(advice.config))
    typer.echo(advice.text())


@app.command()
def prepare(config: Config, dry_run: DryRun = False) -> None:
    """Read this party's data, check them, write them as encoded shards. `train` does it, too; nothing is sent."""
    from veilmeans.pipelines.prepare import prepare_data

    settings = load_config(config)
    if dry_run:
        from veilmeans.pipelines.prepare import dry_prepare

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
    from veilmeans.pipelines.reporting.plan_table import run_plan

    run_plan(settings, json_file, compare)


@app.command(context_settings=TO_BEAM)
def offline(context: typer.Context, config: Config, dry_run: DryRun = False) -> None:
    """Make the store of correlated randomness that runs use up. Every party and the dealer run it once.

    It knows shapes, never data. Start it again to go on after a mishap.
    """
    settings = load_config(config).with_flags(context.args)
    from veilmeans.pipelines.offline import run_offline

    if dry_run:
        from veilmeans.pipelines.offline import dry_offline

        typer.echo(dry_offline(settings))
        return
    made = run_offline(settings)
    typer.echo(
        f"the store {made.store!r} serves {made.runs:,} runs of {made.iterations:,} iterations, {made.rows:,} rows"
    )


@app.command(context_settings=TO_BEAM)
def train(context: typer.Context, config: Config, dry_run: DryRun = False) -> None:
    """Take part in K-means. Every party runs it; start it again to go on after a mishap.

    Reads kmeans.data, agrees with the others on every parameter, iterates on shares with a checkpoint after each
    iteration, and opens at the end what kmeans.reveal names.
    """
    settings = load_config(config).with_flags(context.args)
    if dry_run:
        _show_plan(settings, predicts=False)
    else:
        from veilmeans.pipelines.reporting.html_report import write_report
        from veilmeans.pipelines.train import run_train

        typer.echo(f"results: {run_train(settings)}; `veilmeans results --config {config}` shows them")
        typer.echo(f"report: {write_report(settings, config.resolve().parent)}")


def _show_plan(settings: JobConfig, predicts: bool) -> None:
    from veilmeans.pipelines.planning.job_plan import plan_train
    from veilmeans.pipelines.reporting.plan_table import show_plan
    from veilmeans.pipelines.session.kmeans_from_config import check_command

    check_command(settings, predicts)
    Console().print(show_plan(plan_train(settings)))


@app.command(context_settings=TO_BEAM)
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
        from veilmeans.pipelines.configure.predict_config import write_prediction

        typer.echo(write_prediction(config, new, data, rows, write, dry_run))
        return
    if (data, rows, write) != (None, None, None):
        raise ConfigError("--data, --rows and --write belong to --new, which writes the configuration of a prediction")
    settings = load_config(config).with_flags(context.args)
    if dry_run:
        _show_plan(settings, predicts=True)
    else:
        from veilmeans.pipelines.predict import run_predict
        from veilmeans.pipelines.reporting.html_report import write_report

        typer.echo(f"results: {run_predict(settings)}; `veilmeans results --config {config}` shows them")
        typer.echo(f"report: {write_report(settings, config.resolve().parent)}")


@app.command()
def status(config: Config) -> None:
    """Show how far this party's run has come, from its own files. Nothing is sent."""
    settings = load_config(config)
    from veilmeans.pipelines.reporting.status import show_status

    Console().print(show_status(settings))


@app.command()
def results(
    config: Config,
    csv: Annotated[Path | None, typer.Option(help="write each row's cluster to this file, too")] = None,
) -> None:
    """Show what a finished run has opened to this party: sizes of clusters, centroids, files. Nothing is sent."""
    settings = load_config(config)
    from veilmeans.pipelines.reporting.results_table import show_results, write_assignments_csv

    show_results(settings, Console())
    if csv is not None:
        write_assignments_csv(settings, csv)
        typer.echo(f"wrote {csv}")


@app.command()
def report(config: Config, dry_run: DryRun = False) -> None:
    """Write report.html of this party's run anew, from its own files: costs, stages, what was opened to whom."""
    settings = load_config(config)
    from veilmeans.pipelines.reporting.html_report import report_page, write_report

    if dry_run:
        size = len(report_page(settings, config.resolve().parent).encode())
        typer.echo(f"would write {settings.run_folder / 'report.html'}, {size:,} bytes")
    else:
        typer.echo(f"report: {write_report(settings, config.resolve().parent)}")


@app.command(context_settings=TO_BEAM)
def reveal(context: typer.Context, config: Config, dry_run: DryRun = False) -> None:
    """Open more of a finished run: what kmeans.reveal names now, if every party runs this with the same policy."""
    settings = load_config(config).with_flags(context.args)
    from veilmeans.pipelines.reporting.html_report import write_report
    from veilmeans.pipelines.reveal import run_reveal

    if dry_run:
        from veilmeans.pipelines.reveal import dry_reveal

        typer.echo(dry_reveal(settings))
        return
    for what, value in run_reveal(settings).items():
        typer.echo(f"{what}: {value}")
    typer.echo(f"report: {write_report(settings, config.resolve().parent)}")


@app.command()
def gateway(config: Config, dry_run: DryRun = False) -> None:
    """Run a party's gateway as a process of its own, until it is interrupted.

    Needed where workers are many or come and go (Flink, Dataflow); set `gateway: separate` in the configuration.
    """
    from veilmeans.io.exchange.connections import open_gateway
    from veilmeans.io.exchange.tls_diagnosis import explained_handshakes

    if dry_run:
        from veilmeans.pipelines.gateway import dry_gateway

        typer.echo(dry_gateway(load_config(config)))
        return
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    settings = load_config(config)
    with explained_handshakes(), open_gateway(settings) as door:
        logging.getLogger(__name__).info("gateway of %s listens on port %d", settings.party, door.port)
        stopped.wait()


@app.command(context_settings=TO_BEAM)
def sums(context: typer.Context, config: Config, dry_run: DryRun = False) -> None:
    """Take part in secure column sums. Start it again to go on after a mishap."""
    settings = load_config(config).with_flags(context.args)
    from veilmeans.pipelines.sums import plan_sums, run_sums

    if dry_run:
        Console().print(plan_sums(settings))
    else:
        typer.echo(str(run_sums(settings)))
