"""Commands of a party with a configuration. Each loads it, calls one function of a job, and prints what came back."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from veilmeans.pipelines.cli.app import BEAM_FLAGS, EXIT_CODES, Changes, Config, Configured, DryRun, Run, app
from veilmeans.pipelines.cli.json_output import Facts, add_command
from veilmeans.pipelines.reporting.terminal import Terminal

_COMPARE_HELP = "compare with a run's report (the run's name; .: the configured run)"


@add_command(app, "inspect")
def inspect(config: Config, run: Run = None, changes: Changes = None) -> Facts:
    """Show how your data would be used, and what to configure.

    Columns, encoding, ranges and scaling are printed on this terminal; nothing is sent. The last lines are the commands
    that make all members' configurations fit the data.
    """
    configured = Configured.load(config, run, changes)
    from veilmeans.pipelines.configure.config_advice import advise
    from veilmeans.pipelines.configure.data_summary import show_data

    advice = advise(configured.settings, config)
    Terminal().print(show_data(advice.config, advice.scan, advice.model))
    typer.echo(advice.text())
    scanned = {"rows": advice.scan.rows, "columns": list(advice.scan.columns)}
    return {**configured.facts, **scanned, "fits": advice.fits, "advice": advice.text()}


@add_command(app, "plan")
def plan(
    config: Config,
    compare: Annotated[str | None, typer.Option(help=_COMPARE_HELP)] = None,
    run: Run = None,
    changes: Changes = None,
) -> Facts:
    """Show the steps, bytes, disk and time of a run before it starts.

    The plan follows from the configuration alone: no data, no triple store, nothing is sent. It has rounds, bytes,
    triples, disk, time on a LAN and a WAN, and the engine of each product with the reason for it.
    """
    configured = Configured.load(config, run, changes)
    from veilmeans.pipelines.reporting.plan_table import run_plan

    return {**configured.facts, **run_plan(configured.settings, compare).to_json()}


@add_command(app, "train", context_settings=BEAM_FLAGS, epilog=EXIT_CODES)
def train(
    context: typer.Context, config: Config, dry_run: DryRun = False, run: Run = None, changes: Changes = None
) -> Facts:
    """Take part in K-means with the other parties.

    Every party runs it at the same time. It reads kmeans.data, makes the triple store with the others if there is none
    (a dealer's is made by `veilmeans offline` before), agrees with them on every parameter, iterates on shares with a
    checkpoint after each iteration, and opens the results that kmeans.reveal names. Safe to rerun: it resumes where it
    stopped. Unknown flags go to Beam.
    """
    configured = _with_flags(Configured.load(config, run, changes), context)
    if dry_run:
        return _show_plan(configured, predicts=False)
    from veilmeans.pipelines.train import run_train

    return _print_results(configured, run_train(configured.settings))


@add_command(app, "results")
def results(
    config: Config,
    csv: Annotated[Path | None, typer.Option(help="write each row's cluster to this file, too")] = None,
    outliers_csv: Annotated[Path | None, typer.Option(help="write the outliers to this file, too")] = None,
    run: Run = None,
    changes: Changes = None,
) -> Facts:
    """Show the results that were opened to this party.

    Sizes of the clusters, centroids, outliers and the paths of the result files, from this party's storage. Nothing is
    sent.
    """
    configured = Configured.load(config, run, changes)
    settings = configured.settings
    from veilmeans.pipelines.reporting.results_table import show_results, write_assignments_csv, write_outliers_csv

    facts = {**configured.facts, **show_results(settings, Terminal())}
    for name, file, write in (
        ("csv", csv, write_assignments_csv),
        ("outliers_csv", outliers_csv, write_outliers_csv),
    ):
        if file is not None:
            escaped = write(settings, file)
            note = "; ' stands before so many ids that a spreadsheet would take for formulas: " if escaped else ""
            typer.echo(f"wrote {file}{note}{escaped if escaped else ''}")
            facts |= {name: str(file), f"{name}_escaped": escaped}
    return facts


@add_command(app, "offline", context_settings=BEAM_FLAGS, epilog=EXIT_CODES)
def offline(
    context: typer.Context, config: Config, dry_run: DryRun = False, run: Run = None, changes: Changes = None
) -> Facts:
    """Make the triple store of a run ahead of time; with a dealer, always.

    Every party and the dealer, if there is one, run it at the same time. It depends on shapes and never on data.
    Without a dealer `train` and `predict` do the same, if it was not done before. Safe to rerun: it resumes where it
    stopped. Unknown flags go to Beam.
    """
    configured = _with_flags(Configured.load(config, run, changes), context)
    from veilmeans.pipelines.offline import dry_offline, run_offline

    if dry_run:
        return _print_text(dry_offline(configured.settings), configured)
    made = run_offline(configured.settings)
    size = f"{made.runs:,} runs of {made.iterations:,} iterations, {made.rows:,} rows"
    typer.echo(f"the store {made.store!r} serves {size}")
    served = {"store": made.store, "runs": made.runs, "iterations": made.iterations, "rows": made.rows}
    return {**configured.facts, **served}


@add_command(app, "predict", context_settings=BEAM_FLAGS, epilog=EXIT_CODES)
def predict(
    context: typer.Context, config: Config, dry_run: DryRun = False, run: Run = None, changes: Changes = None
) -> Facts:
    """Assign new rows to the clusters of a trained model.

    Its configuration is written by `veilmeans config predict`; every party runs it, with a dealer after `veilmeans
    offline` with the same configuration. New rows are encoded and scaled exactly as the trained ones. The centroids
    stay shares; the rows' clusters are opened to the parties in kmeans.reveal.assignments. Safe to rerun: it resumes
    where it stopped.
    """
    configured = _with_flags(Configured.load(config, run, changes), context)
    if dry_run:
        return _show_plan(configured, predicts=True)
    from veilmeans.pipelines.predict import run_predict

    return _print_results(configured, run_predict(configured.settings))


def _with_flags(configured: Configured, context: typer.Context) -> Configured:
    return replace(configured, settings=configured.settings.with_flags(context.args))


def _show_plan(configured: Configured, predicts: bool) -> Facts:
    from veilmeans.pipelines.planning.job_plan import plan_train
    from veilmeans.pipelines.reporting.plan_table import show_plan
    from veilmeans.pipelines.session.kmeans_from_config import check_command

    check_command(configured.settings, predicts)
    planned = plan_train(configured.settings)
    Terminal().print(show_plan(planned))
    return {**configured.facts, **planned.to_json()}


def _print_text(text: str, configured: Configured) -> Facts:
    typer.echo(text)
    return {**configured.facts, "text": text}


def _print_results(configured: Configured, folder: Path) -> Facts:
    repeated = f"{configured.file}{configured.options}"
    typer.echo(f"results: {folder}; `veilmeans results --config {repeated}` shows them")
    ended = configured.settings.run_folder.farewell.exists()
    return {**_print_report(configured), "results": str(folder), "ended": ended}


def _print_report(configured: Configured) -> Facts:
    from veilmeans.pipelines.reporting.html_report import write_report

    page = write_report(configured.settings, configured.file.resolve().parent)
    typer.echo(f"report: {page}")
    return {**configured.facts, "report": str(page)}


@add_command(app, "reveal", context_settings=BEAM_FLAGS, epilog=EXIT_CODES)
def reveal(
    context: typer.Context, config: Config, dry_run: DryRun = False, run: Run = None, changes: Changes = None
) -> Facts:
    """Open more results of a finished run, if all parties agree.

    Set kmeans.reveal to the new policy at every party; then every party runs this command at the same time. Results
    are opened only if the policies are the same.
    """
    configured = _with_flags(Configured.load(config, run, changes), context)
    from veilmeans.pipelines.reveal import dry_reveal, run_reveal

    if dry_run:
        return _print_text(dry_reveal(configured.settings), configured)
    opened = run_reveal(configured.settings)
    for result, value in opened.items():
        typer.echo(f"{result}: {value}")
    return {**_print_report(configured), "opened": opened}


@add_command(app, "prepare")
def prepare(config: Config, dry_run: DryRun = False, run: Run = None, changes: Changes = None) -> Facts:
    """Read, check and encode this party's data; `train` does it, too.

    Run it early to find mistakes in large data. Encoded shards are kept for `train`. Nothing is sent.
    """
    configured = Configured.load(config, run, changes)
    from veilmeans.pipelines.prepare import dry_prepare, prepare_data

    return _print_text((dry_prepare if dry_run else prepare_data)(configured.settings), configured)


@add_command(app, "status")
def status(config: Config, run: Run = None, changes: Changes = None) -> Facts:
    """Show how far a run has come.

    It reads this party's own files. Nothing is sent.
    """
    configured = Configured.load(config, run, changes)
    from veilmeans.pipelines.reporting.status import read_status, show_status

    state = read_status(configured.settings)
    Terminal().print(show_status(configured.settings, state))
    return {**configured.facts, **asdict(state)}


@add_command(app, "report")
def report(config: Config, dry_run: DryRun = False, run: Run = None, changes: Changes = None) -> Facts:
    """Write the report of a run as one HTML file.

    Costs, stages, and which results were opened to whom, from this party's own files. `train`, `predict` and `reveal`
    write it, too.
    """
    configured = Configured.load(config, run, changes)
    if not dry_run:
        return _print_report(configured)
    from veilmeans.pipelines.reporting.html_report import report_page

    size = len(report_page(configured.settings, config.resolve().parent).encode())
    return _print_text(f"would write {configured.settings.run_folder.html_report}, {size:,} bytes", configured)


@add_command(app, "gateway")
def gateway(config: Config, dry_run: DryRun = False, run: Run = None, changes: Changes = None) -> Facts:
    """Run this party's gateway as a separate process.

    Needed where workers are many or come and go (Flink, Dataflow): set `gateway: separate` in the configuration. It
    runs until it is interrupted (Ctrl-C or SIGTERM).
    """
    configured = Configured.load(config, run, changes)
    from veilmeans.pipelines.gateway import dry_gateway, run_gateway

    if dry_run:
        return _print_text(dry_gateway(configured.settings), configured)
    run_gateway(configured.settings)
    return {**configured.facts, "listen": configured.settings.listen}
