"""Commands of a party with a configuration. Each loads it, calls one function of a job, and prints what came back."""

from pathlib import Path
from typing import Annotated

import typer

from veilmeans.pipelines.cli.app import BEAM_FLAGS, EXIT_CODES, Config, DryRun, app
from veilmeans.pipelines.reporting.terminal import Terminal
from veilmeans.pipelines.session.aligned_config import load_aligned_config, with_alignment
from veilmeans.schemas.config import JobConfig, load_config

_JSON_HELP = "write the plan as JSON to this file, too (-: print only JSON)"
_CLUSTERS_HELP = "of a sweep: numbers of clusters, such as 2-10 or 2,4,8; default: kmeans.sweep"
Clusters = Annotated[str | None, typer.Option("--clusters", help=_CLUSTERS_HELP)]
_COMPARE_HELP = "compare with a run's report (the run's name; .: the configured run)"


@app.command()
def inspect(config: Config) -> None:
    """Show how your data would be used, and what to configure.

    Columns, encoding, ranges and scaling are printed on this terminal; nothing is sent. The last lines are the commands
    that make all members' configurations fit the data.
    """
    settings = load_aligned_config(config)
    from veilmeans.pipelines.configure.config_advice import advise
    from veilmeans.pipelines.configure.data_summary import show_data

    advice = advise(settings, config)
    Terminal().print(show_data(advice.config, advice.scan, advice.model))
    typer.echo(advice.text())


@app.command()
def plan(
    config: Config,
    json_file: Annotated[str | None, typer.Option("--json", help=_JSON_HELP)] = None,
    compare: Annotated[str | None, typer.Option(help=_COMPARE_HELP)] = None,
    clusters: Clusters = None,
) -> None:
    """Show the steps, bytes, disk and time of a run before it starts.

    The plan follows from the configuration alone: no data, no triple store, nothing is sent. It has rounds, bytes,
    triples, disk, time on a LAN and a WAN, and the engine of each product with the reason for it.
    """
    settings = load_aligned_config(config).sweeping(clusters)
    from veilmeans.pipelines.reporting.plan_table import run_plan

    run_plan(settings, json_file, compare)


@app.command(context_settings=BEAM_FLAGS, epilog=EXIT_CODES)
def train(context: typer.Context, config: Config, dry_run: DryRun = False) -> None:
    """Take part in K-means with the other parties.

    Every party runs it at the same time. It reads kmeans.data, makes the triple store with the others if there is none
    (a dealer's is made by `veilmeans offline` before), agrees with them on every parameter, iterates on shares with a
    checkpoint after each iteration, and opens the results that kmeans.reveal names. Safe to rerun: it resumes where it
    stopped. Unknown flags go to Beam.
    """
    settings = load_aligned_config(config).with_flags(context.args)
    if dry_run:
        _show_plan(settings, predicts=False)
    else:
        from veilmeans.pipelines.train import run_train

        _print_results(config, settings, run_train(settings))


@app.command(context_settings=BEAM_FLAGS, epilog=EXIT_CODES)
def align(context: typer.Context, config: Config) -> None:
    """Find the rows that all parties have, by their ids.

    Vertical layout, with kmeans.id and `align: true`. Every party runs it at the same time. Each learns which of its
    own ids all others have, and how many ids every party has; ids that are not common stay unknown. Its rows are
    written in one agreed order, and `train` and all other commands use them. `train` does the same, if it was not done
    before. Safe to rerun: it resumes where it stopped.
    """
    settings = load_config(config).with_flags(context.args)
    from veilmeans.pipelines.align import describe, run_align

    typer.echo(describe(settings, run_align(settings)))


@app.command(context_settings=BEAM_FLAGS, epilog=EXIT_CODES)
def sweep(context: typer.Context, config: Config, clusters: Clusters = None, dry_run: DryRun = False) -> None:
    """Train with several numbers of clusters, to choose one.

    Every party runs it at the same time, with the same numbers. There is one handshake, and one triple store, which
    the parties make if there is none (a dealer's is made by `veilmeans offline --clusters 2-10` before). Each training
    is a run of its own, RUN.k5 with five clusters. The inertias are opened to the parties in kmeans.reveal.inertia,
    and plotted in sweep.html. Safe to rerun: it resumes where it stopped. Unknown flags go to Beam.
    """
    settings = load_aligned_config(config).sweeping(clusters).with_flags(context.args)
    from veilmeans.pipelines.reporting.html_report import write_report
    from veilmeans.pipelines.reporting.sweep_report import show_sweep, write_sweep_page
    from veilmeans.pipelines.sweep import check_sweep, run_sweep

    check_sweep(settings)
    if dry_run:
        from veilmeans.pipelines.reporting.plan_table import run_plan

        run_plan(settings, None, None)
        return
    run_sweep(settings)
    settings = with_alignment(settings)
    for part in settings.swept().values():
        write_report(part, config.resolve().parent)
    Terminal().print(show_sweep(settings))
    typer.echo(f"report: {write_sweep_page(settings)}")


@app.command()
def results(
    config: Config,
    csv: Annotated[Path | None, typer.Option(help="write each row's cluster to this file, too")] = None,
    outliers_csv: Annotated[Path | None, typer.Option(help="write the outliers to this file, too")] = None,
    explanations_csv: Annotated[Path | None, typer.Option(help="write what explains them to this file, too")] = None,
) -> None:
    """Show the results that were opened to this party.

    Sizes of the clusters, centroids, outliers, what explains them, and the paths of the result files, from this party's
    storage. Nothing is sent.
    """
    settings = load_aligned_config(config)
    from veilmeans.pipelines.reporting import results_table
    from veilmeans.pipelines.reporting.sweep_report import is_sweep, show_sweep

    if is_sweep(settings):
        Terminal().print(show_sweep(settings))
        return
    results_table.show_results(settings, Terminal())
    for file, write in (
        (csv, results_table.write_assignments_csv),
        (outliers_csv, results_table.write_outliers_csv),
        (explanations_csv, results_table.write_explanations_csv),
    ):
        if file is not None:
            escaped = write(settings, file)
            note = "; ' stands before so many ids that a spreadsheet would take for formulas: " if escaped else ""
            typer.echo(f"wrote {file}{note}{escaped if escaped else ''}")


@app.command(context_settings=BEAM_FLAGS, epilog=EXIT_CODES)
def offline(context: typer.Context, config: Config, clusters: Clusters = None, dry_run: DryRun = False) -> None:
    """Make the triple store of a run ahead of time; with a dealer, always.

    Every party and the dealer, if there is one, run it at the same time. It depends on shapes and never on data.
    Without a dealer `train` and `predict` do the same, if it was not done before. Safe to rerun: it resumes where it
    stopped. Unknown flags go to Beam.
    """
    settings = load_aligned_config(config).sweeping(clusters).with_flags(context.args)
    from veilmeans.pipelines.offline import dry_offline, run_offline

    if dry_run:
        typer.echo(dry_offline(settings))
        return
    made = run_offline(settings)
    size = f"{made.runs:,} runs of {made.iterations:,} iterations, {made.rows:,} rows"
    typer.echo(f"the store {made.store!r} serves {size}")


@app.command(context_settings=BEAM_FLAGS, epilog=EXIT_CODES)
def predict(context: typer.Context, config: Config, dry_run: DryRun = False) -> None:
    """Assign new rows to the clusters of a trained model.

    Its configuration is written by `veilmeans config predict`; every party runs it, with a dealer after `veilmeans
    offline` with the same configuration. New rows are encoded and scaled exactly as the trained ones. The centroids
    stay shares; the rows' clusters are opened to the parties in kmeans.reveal.assignments. Safe to rerun: it resumes
    where it stopped.
    """
    settings = load_aligned_config(config).with_flags(context.args)
    if dry_run:
        _show_plan(settings, predicts=True)
    else:
        from veilmeans.pipelines.predict import run_predict

        _print_results(config, settings, run_predict(settings))


def _show_plan(settings: JobConfig, predicts: bool) -> None:
    from veilmeans.pipelines.planning.job_plan import plan_train
    from veilmeans.pipelines.reporting.plan_table import show_plan
    from veilmeans.pipelines.session.kmeans_from_config import check_command

    check_command(settings, predicts)
    Terminal().print(show_plan(plan_train(settings)))


def _print_results(config: Path, settings: JobConfig, folder: Path) -> None:
    typer.echo(f"results: {folder}; `veilmeans results --config {config}` shows them")
    _print_report(config, with_alignment(settings))


def _print_report(config: Path, settings: JobConfig) -> None:
    from veilmeans.pipelines.reporting.html_report import write_report

    typer.echo(f"report: {write_report(settings, config.resolve().parent)}")


@app.command(context_settings=BEAM_FLAGS, epilog=EXIT_CODES)
def reveal(context: typer.Context, config: Config, dry_run: DryRun = False) -> None:
    """Open more results of a finished run, if all parties agree.

    Set kmeans.reveal to the new policy at every party; then every party runs this command at the same time. Results
    are opened only if the policies are the same.
    """
    settings = load_aligned_config(config).with_flags(context.args)
    from veilmeans.pipelines.reveal import dry_reveal, run_reveal

    if dry_run:
        typer.echo(dry_reveal(settings))
        return
    for result, value in run_reveal(settings).items():
        typer.echo(f"{result}: {value}")
    _print_report(config, settings)


@app.command()
def prepare(config: Config, dry_run: DryRun = False) -> None:
    """Read, check and encode this party's data; `train` does it, too.

    Run it early to find mistakes in large data. Encoded shards are kept for `train`. Nothing is sent.
    """
    settings = load_aligned_config(config)
    from veilmeans.pipelines.prepare import dry_prepare, prepare_data

    typer.echo((dry_prepare if dry_run else prepare_data)(settings))


@app.command()
def status(config: Config) -> None:
    """Show how far a run has come.

    It reads this party's own files. Nothing is sent.
    """
    settings = load_aligned_config(config)
    from veilmeans.pipelines.reporting.status import show_status

    Terminal().print(show_status(settings))


@app.command()
def report(config: Config, dry_run: DryRun = False) -> None:
    """Write the report of a run as one HTML file.

    Costs, stages, and which results were opened to whom, from this party's own files. `train`, `predict` and `reveal`
    write it, too.
    """
    settings = load_aligned_config(config)
    if dry_run:
        from veilmeans.pipelines.reporting.html_report import report_page

        size = len(report_page(settings, config.resolve().parent).encode())
        typer.echo(f"would write {settings.run_folder.html_report}, {size:,} bytes")
    else:
        _print_report(config, settings)


@app.command()
def gateway(config: Config, dry_run: DryRun = False) -> None:
    """Run this party's gateway as a separate process.

    Needed where workers are many or come and go (Flink, Dataflow): set `gateway: separate` in the configuration. It
    runs until it is interrupted (Ctrl-C or SIGTERM).
    """
    settings = load_aligned_config(config)
    from veilmeans.pipelines.gateway import dry_gateway, run_gateway

    if dry_run:
        typer.echo(dry_gateway(settings))
    else:
        run_gateway(settings)
