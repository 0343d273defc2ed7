"""Commands before there is a run: keys, configurations, and the demo. What they do is elsewhere."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from veilmeans import __version__
from veilmeans.pipelines.cli.app import Configs, DryRun, app

Layout = Literal["vertical", "horizontal"]


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
    from veilmeans.pipelines.configure.config_template import Example, write_examples, write_trial
    from veilmeans.pipelines.configure.next_commands import apart_steps, trial_steps

    names = tuple(parties.split(","))
    ports = {name: port + i for i, name in enumerate((*names, dealer))}
    example = Example(names, dealer, layout=layout, clusters=clusters, ports=ports, timeout=120 if trial else 600)
    if dry_run:
        from veilmeans.pipelines.configure.config_template import dry_init

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
    from veilmeans.pipelines.configure.edit_config import parse_changes, set_fields

    changed = set_fields(dict.fromkeys(config, parse_changes(changes)), dry_run)
    typer.echo(f"would change:\n{changed}" if dry_run else f"changed: {', '.join(map(str, config))}")


@app.command()
def fill(config: Configs, dry_run: DryRun = False) -> None:
    """For a trial on one machine: look at all parties' data, set rows, columns and categories in all configurations.

    Parties that do not share a machine use `veilmeans inspect` and `veilmeans set`.
    """
    from veilmeans.pipelines.configure.fill_from_data import fill_in

    typer.echo(fill_in(config, dry_run))


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
    from veilmeans.pipelines.configure.party_keys import make_keys

    if dry_run:
        from veilmeans.pipelines.configure.party_keys import dry_keys

        typer.echo(dry_keys(name, out, days))
    else:
        typer.echo(make_keys(name, out, days))


@app.command()
def fingerprint(
    certificates: Annotated[list[Path], typer.Argument(help="files that peers sent", metavar="FILE...")],
) -> None:
    """Show the fingerprints of certificates, to compare them with what their owners read out."""
    from veilmeans.pipelines.configure.party_keys import show_fingerprint

    for file in certificates:
        typer.echo(show_fingerprint(file))


@app.command()
def demo(
    folder: Annotated[Path, typer.Option(help="where configurations, keys, data and results go")] = Path("demo"),
    rows: Annotated[int, typer.Option(min=100, help="made-up transactions")] = 10_000,
    exchange: Annotated[str, typer.Option(help="gateway or files")] = "gateway",
    dry_run: DryRun = False,
) -> None:
    """A payment company and a merchant find fraud that neither sees alone, as separate processes on this machine."""
    from veilmeans.pipelines.local.demo import run_demo

    if dry_run:
        from veilmeans.pipelines.local.demo import dry_demo

        typer.echo(dry_demo(folder, rows, exchange))
    else:
        run_demo(folder, rows, exchange)


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)
