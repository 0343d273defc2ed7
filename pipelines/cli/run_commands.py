"""Commands of a party with a configuration. Each loads it, calls one function of a job, and prints what came back."""

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from veilmeans.pipelines.cli.app import BEAM_FLAGS, EXIT_CODES, Changes, Config, Configured, DryRun, Run, app
from veilmeans.pipelines.cli.json_output import Facts, add_command
from veilmeans.pipelines.reporting.terminal import Terminal
from veilmeans.pipelines.session.aligned_config import with_alignment

_CLUSTERS_HELP = "of a sweep: numbers of clusters, such as 2-10 or 2,4,8; default: kmeans.sweep"
Clusters = Annotated[str | None, typer.Option("--clusters", help=_CLUSTERS_HELP)]
_COLUMNS_HELP = "clusters and outliers as CSV: with all columns of our data beside them"
_COMPARE_HELP = "compare with a run's report (the run's name; .: the configured run)"


def _load(config: Path, run: str | None, changes: list[str] | None) -> Configured:
    """Load a configuration, and use its aligned rows if there are any."""
    return _aligned(Configured.load(config, run, changes))


def _aligned(configured: Configured) -> Configured:
    return replace(configured, settings=with_alignment(configured.settings))


def _with_flags(configured: Configured, context: typer.Context) -> Configured:
    return replace(configured, settings=configured.settings.with_flags(context.args))


def _with_clusters(configured: Configured, clusters: str | None) -> Configured:
    return replace(configured, settings=configured.settings.sweeping(clusters))


@add_command(app, "inspect")
def inspect(config: Config, run: Run = None, changes: Changes = None) -> Facts:
    """Show how your data would be used, and what to configure.

    Columns, encoding, ranges and scaling are printed on this terminal; nothing is sent. The last lines are the commands
    that make all members' configurations fit the data.
    """
    configured = _load(config, run, changes)
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
    clusters: Clusters = None,
    run: Run = None,
    changes: Changes = None,
) -> Facts:
    """Show the steps, bytes, disk and time of a run before it starts.

    The plan follows from the configuration alone: no data, no triple store, nothing is sent. It has rounds, bytes,
    triples, disk, time on a LAN and a WAN, and the engine of each product with the reason for it.
    """
    configured = _with_clusters(_load(config, run, changes), clusters)
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
    configured = _with_flags(_load(config, run, changes), context)
    if dry_run:
        return _show_plan(configured, predicts=False)
    from veilmeans.pipelines.train import run_train

    return _print_results(configured, run_train(configured.settings))


@add_command(app, "align", context_settings=BEAM_FLAGS, epilog=EXIT_CODES)
def align(context: typer.Context, config: Config, run: Run = None, changes: Changes = None) -> Facts:
    """Find the rows that all parties have, by their ids.

    Vertical layout, with kmeans.id and `align: true`. Every party runs it at the same time. Each learns which of its
    own ids all others have, and how many ids every party has; ids that are not common stay unknown. Its rows are
    written in one agreed order, and `train` and all other commands use them. `train` does the same, if it was not done
    before. Safe to rerun: it resumes where it stopped.
    """
    configured = _with_flags(Configured.load(config, run, changes), context)
    from veilmeans.pipelines.align import describe, run_align, run_count

    if configured.settings.align is not None and configured.settings.align.reveal == "size":
        return _print_text(run_count(configured.settings), configured)
    found = run_align(configured.settings)
    return {**_print_text(describe(configured.settings, found), configured), "rows": found.rows, "ids": found.ids}


@add_command(app, "sweep", context_settings=BEAM_FLAGS, epilog=EXIT_CODES)
def sweep(
    context: typer.Context,
    config: Config,
    clusters: Clusters = None,
    dry_run: DryRun = False,
    run: Run = None,
    changes: Changes = None,
) -> Facts:
    """Train with several numbers of clusters, to choose one.

    Every party runs it at the same time, with the same numbers. There is one handshake, and one triple store, which
    the parties make if there is none (a dealer's is made by `veilmeans offline --clusters 2-10` before). Each training
    is a run of its own, RUN.k5 with five clusters. The inertias are opened to the parties in kmeans.reveal.inertia,
    and plotted in sweep.html. Safe to rerun: it resumes where it stopped. Unknown flags go to Beam.
    """
    configured = _with_flags(_with_clusters(_load(config, run, changes), clusters), context)
    from veilmeans.pipelines.reporting.html_report import write_report
    from veilmeans.pipelines.reporting.sweep_report import read_trainings, show_sweep, write_sweep_page
    from veilmeans.pipelines.sweep import check_sweep, run_sweep

    check_sweep(configured.settings)
    if dry_run:
        from veilmeans.pipelines.reporting.plan_table import run_plan

        return {**configured.facts, **run_plan(configured.settings, None).to_json()}
    run_sweep(configured.settings)
    settings = with_alignment(configured.settings)
    for part in settings.swept().values():
        write_report(part, config.resolve().parent)
    Terminal().print(show_sweep(settings))
    page = write_sweep_page(settings)
    typer.echo(f"report: {page}")
    results = {"results": str(settings.run_folder.path), "report": str(page)}
    return {**configured.facts, **results, "trainings": read_trainings(settings)}


@add_command(app, "results")
def results(
    config: Config,
    csv: Annotated[Path | None, typer.Option(help="write each row's cluster to this file, too")] = None,
    outliers_csv: Annotated[Path | None, typer.Option(help="write the outliers to this file, too")] = None,
    explanations_csv: Annotated[Path | None, typer.Option(help="write what explains them to this file, too")] = None,
    profiles_csv: Annotated[Path | None, typer.Option(help="write the clusters' profiles to this file, too")] = None,
    with_columns: Annotated[bool, typer.Option("--with-columns", help=_COLUMNS_HELP)] = False,
    run: Run = None,
    changes: Changes = None,
) -> Facts:
    """Show the results that were opened to this party.

    Sizes and profiles of the clusters, centroids, outliers, what explains them, and the paths of the result files, from
    this party's storage. Nothing is sent.
    """
    configured = _load(config, run, changes)
    settings = configured.settings
    from veilmeans.pipelines.reporting import results_table
    from veilmeans.pipelines.reporting.sweep_report import is_sweep, read_trainings, show_sweep

    if is_sweep(settings):
        Terminal().print(show_sweep(settings))
        return {**configured.facts, "trainings": read_trainings(settings)}
    facts = {**configured.facts, **results_table.show_results(settings, Terminal())}
    for name, file, write in (
        ("csv", csv, partial(results_table.write_assignments_csv, with_columns=with_columns)),
        ("outliers_csv", outliers_csv, partial(results_table.write_outliers_csv, with_columns=with_columns)),
        ("explanations_csv", explanations_csv, results_table.write_explanations_csv),
        ("profiles_csv", profiles_csv, results_table.write_profiles_csv),
    ):
        if file is not None:
            escaped = write(settings, file)
            note = "; ' stands before so many texts that a spreadsheet would take for formulas: " if escaped else ""
            typer.echo(f"wrote {file}{note}{escaped if escaped else ''}")
            facts |= {name: str(file), f"{name}_escaped": escaped}
    return facts


@add_command(app, "offline", context_settings=BEAM_FLAGS, epilog=EXIT_CODES)
def offline(
    context: typer.Context,
    config: Config,
    clusters: Clusters = None,
    dry_run: DryRun = False,
    check: Annotated[int | None, typer.Option(min=1, help="open so many spare numbers, and verify them")] = None,
    run: Run = None,
    changes: Changes = None,
) -> Facts:
    """Make the triple store of a run ahead of time; with a dealer, always.

    Every party and the dealer, if there is one, run it at the same time. It depends on shapes and never on data.
    Without a dealer `train` and `predict` do the same, if it was not done before. Safe to rerun: it resumes where it
    stopped. Unknown flags go to Beam.

    --check N, at all parties when the store is made: opens N of the numbers that no run has used, drawn by all parties,
    and verifies all their correlations. No run uses them; a store with a wrong one is refused from then on.
    """
    configured = _with_flags(_with_clusters(_load(config, run, changes), clusters), context)
    from veilmeans.pipelines.offline import dry_offline, run_check, run_offline

    if check is not None:
        numbers = run_check(configured.settings, check)
        typer.echo(f"{len(numbers):,} numbers of the store are right, and are used up: {', '.join(map(str, numbers))}")
        return {**configured.facts, "checked": numbers}
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
    configured = _with_flags(_load(config, run, changes), context)
    if dry_run:
        return _show_plan(configured, predicts=True)
    from veilmeans.pipelines.predict import run_predict

    return _print_results(configured, run_predict(configured.settings))


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
    return {**_print_report(_aligned(configured)), "results": str(folder), "ended": ended}


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
    configured = _with_flags(_load(config, run, changes), context)
    from veilmeans.pipelines.reveal import dry_reveal, run_reveal

    if dry_run:
        return _print_text(dry_reveal(configured.settings), configured)
    opened = run_reveal(configured.settings)
    for result, value in opened.items():
        typer.echo(f"{result}: {value}")
    return {**_print_report(configured), "opened": opened}


@add_command(app, "audit", epilog=EXIT_CODES)
def audit(
    config: Config,
    iteration: Annotated[int | None, typer.Option(help="replay this iteration only")] = None,
    shard: Annotated[int | None, typer.Option(help="replay this row shard only")] = None,
    run: Run = None,
    changes: Changes = None,
) -> Facts:
    """Check a finished run from this party's own files.

    The signed transcripts of all parties are compared, the data with the digest of the handshake, and, where audit.keep
    was set, every message that this party sent is computed again and compared bit for bit. Nothing is sent.
    """
    configured = _load(config, run, changes)
    from veilmeans.pipelines.reporting.audit import run_audit

    found = []
    for line in run_audit(configured.settings, iteration, shard):
        typer.echo(line)
        found.append(line)
    return {**configured.facts, "found": found}


@add_command(app, "openings")
def openings(config: Config, run: Run = None, changes: Changes = None) -> Facts:
    """List what was opened of this party's data, and to whom.

    By runs, predictions and reveals, for each data set, from this party's own ledger. Nothing is sent.
    """
    configured = _load(config, run, changes)
    from veilmeans.io.ledgers.opening_ledger import all_ledgers

    limit, ledgers = configured.settings.openings.limit, all_ledgers(configured.settings)
    for ledger in ledgers:
        Terminal().print("\n".join(ledger.lines(limit)))
    if not ledgers:
        typer.echo("nothing was opened yet")
    opened = {ledger.data: [asdict(each) for each in ledger.openings()] for ledger in ledgers}
    return {**configured.facts, "limit": limit, "data": opened}


@add_command(app, "prepare")
def prepare(config: Config, dry_run: DryRun = False, run: Run = None, changes: Changes = None) -> Facts:
    """Read, check and encode this party's data; `train` does it, too.

    Run it early to find mistakes in large data. Encoded shards are kept for `train`. Nothing is sent.
    """
    configured = _load(config, run, changes)
    from veilmeans.pipelines.prepare import dry_prepare, prepare_data

    return _print_text((dry_prepare if dry_run else prepare_data)(configured.settings), configured)


@add_command(app, "status")
def status(config: Config, run: Run = None, changes: Changes = None) -> Facts:
    """Show how far a run has come.

    It reads this party's own files. Nothing is sent.
    """
    configured = _load(config, run, changes)
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
    configured = _load(config, run, changes)
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
    configured = _load(config, run, changes)
    from veilmeans.pipelines.gateway import dry_gateway, run_gateway

    if dry_run:
        return _print_text(dry_gateway(configured.settings), configured)
    run_gateway(configured.settings)
    return {**configured.facts, "listen": configured.settings.listen}
