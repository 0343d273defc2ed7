"""Commands that need no run: `init`, `demo`, `version`, and all of `veilmeans config`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from veilmeans import __version__
from veilmeans.pipelines.cli.app import Changes, Config, Configs, Configured, Dealer, DryRun, Run, app, config_app
from veilmeans.pipelines.cli.json_output import Facts, add_command

_ROWS_HELP = "number of new rows, unless they are aligned; horizontal: one for each party, separated by commas"
_LAYOUT_HELP = "vertical: same rows, own columns; horizontal: same columns, own rows"
_TRIAL_HELP = "all members on this machine, keys included; or separate companies"


@add_command(app, "init")
def init(
    out: Annotated[Path, typer.Option("--out", "-o", help="folder in which the members' folders are made")] = Path(),
    parties: Annotated[str, typer.Option(help="names of the parties, separated by commas")] = "payco,shop",
    dealer: Dealer = None,
    layout: Annotated[Literal["vertical", "horizontal"], typer.Option(help=_LAYOUT_HELP)] = "vertical",
    clusters: Annotated[int, typer.Option(min=1, help="number of clusters")] = 5,
    port: Annotated[int, typer.Option(min=1, max=65000, help="the first party's port; the others' follow")] = 7101,
    trial: Annotated[bool, typer.Option("--trial/--separate", help=_TRIAL_HELP)] = True,
    dry_run: DryRun = False,
) -> Facts:
    """Write everyone's configuration and print the commands up to a result.

    Each party (and the dealer, if there is one) gets a folder with `config.yaml`, in which every field is explained.
    With --trial (the default) the folders also hold keys, so that you can play all members on one machine. With
    --separate each company makes its own keys, and nothing in the folders is secret.
    """
    from veilmeans.pipelines.configure.config_template import TemplateValues, dry_init, write_configs, write_trial
    from veilmeans.pipelines.configure.next_commands import separate_commands, trial_commands

    names = tuple(parties.split(","))
    values = TemplateValues(
        names,
        dealer,
        layout=layout,
        clusters=clusters,
        first_port=port,
        timeout=120 if trial else 600,
    )
    configs = [str(out / name / "config.yaml") for name in values.members]
    if dry_run:
        return {"configs": configs, **_print_text(dry_init(out, values, trial))}
    (write_trial if trial else write_configs)(out, values)
    return {"configs": configs, **_print_text((trial_commands if trial else separate_commands)(out, values))}


def _print_text(text: str) -> Facts:
    typer.echo(text)
    return {"text": text}


@add_command(config_app, "config set")
def set_(
    config: Configs,
    changes: Annotated[list[str], typer.Argument(help="such as kmeans.clusters=3", metavar="FIELD=VALUE...")],
    dry_run: DryRun = False,
) -> Facts:
    """Change fields of configurations in place.

    The value is YAML: 3, true, null, [a, b], {payco: 4, shop: 2}. Comments and order stay. Nothing is written if a
    configuration would be wrong afterwards.
    """
    from veilmeans.pipelines.configure.edit_config import parse_changes, set_fields

    changed = set_fields(dict.fromkeys(config, parse_changes(changes)), dry_run)
    typer.echo(f"would change:\n{changed}" if dry_run else f"changed: {', '.join(map(str, config))}")
    return {"configs": list(map(str, config)), "difference": changed}


@add_command(config_app, "config fill")
def fill(config: Configs, dry_run: DryRun = False) -> Facts:
    """Set rows, columns and categories from all parties' data.

    Only for a trial on one machine. Parties that do not share one use `veilmeans inspect` and `veilmeans config set`.
    """
    from veilmeans.pipelines.configure.fill_from_data import fill_configs

    return {"configs": list(map(str, config)), **_print_text(fill_configs(config, dry_run))}


@add_command(config_app, "config keys")
def keys(
    name: Annotated[str, typer.Option("--name", "-n", help="the party's name, as in every configuration")],
    out: Annotated[Path, typer.Option("--out", "-o", help="folder for the files")] = Path("keys"),
    days: Annotated[int, typer.Option(min=1, max=3650, help="days for which the certificate is valid")] = 365,
    dry_run: DryRun = False,
) -> Facts:
    """Make a party's key, certificate and seed.

    NAME.key and NAME.seed are secrets (mode 0600) and stay here. Send NAME.crt to every peer, and read its fingerprint
    to them over another channel, such as the phone.
    """
    from veilmeans.pipelines.configure.party_keys import dry_keys, key_files, make_keys

    text = _print_text((dry_keys if dry_run else make_keys)(name, out, days))
    return {**dict(zip(("key", "seed", "certificate"), map(str, key_files(name, out)), strict=True)), **text}


@add_command(config_app, "config fingerprint")
def fingerprint(
    certificates: Annotated[list[Path], typer.Argument(help="certificates that peers sent", metavar="FILE...")],
) -> Facts:
    """Show fingerprints of certificates, to compare by phone.

    Pin a peer's certificate only if its owner reads out the same fingerprint.
    """
    from veilmeans.pipelines.configure.party_keys import show_fingerprint

    return _print_text("\n".join(map(show_fingerprint, certificates)))


@add_command(config_app, "config predict")
def config_predict(
    config: Config,
    name: Annotated[str, typer.Option("--name", "-n", help="name of the prediction, the same at all members")],
    rows: Annotated[str | None, typer.Option(help=_ROWS_HELP)] = None,
    data: Annotated[str | None, typer.Option(help="this party's new rows (the dealer has none)")] = None,
    write: Annotated[Path | None, typer.Option(help="the file to write; default: NAME.yaml beside --config")] = None,
    dry_run: DryRun = False,
    run: Run = None,
    changes: Changes = None,
) -> Facts:
    """Write the configuration of a prediction.

    It is that of the training with some fields changed. Every member runs it: `veilmeans config predict --config
    payco.yaml --name march --data march.csv --rows 5000` writes march.yaml. Then `veilmeans predict --config
    march.yaml` at every party; where there is a dealer, `veilmeans offline --config march.yaml` at every member first.
    """
    from veilmeans.pipelines.configure.predict_config import write_predict_config

    trained = Configured.load(config, run, changes)
    target = write or config.with_name(f"{name}.yaml")
    text = write_predict_config(config, name, data, rows, target, dry_run, trained.text)
    return {"party": trained.settings.party, "run": name, "config": str(target.resolve()), **_print_text(text)}


@add_command(config_app, "config token")
def config_token(
    config: Config,
    write: Annotated[Path | None, typer.Option(help="the file to write; default: RUN.token beside --config")] = None,
    revoke: Annotated[bool, typer.Option(help="refuse all tokens of the run that were made so far")] = False,
    run: Run = None,
    changes: Changes = None,
) -> Facts:
    """Write or revoke the token of a run's workers.

    For workers on other hosts, which share nothing with this one but `shared` (docs/runners.md). They show it to our
    gateway. With it they can send in this party's name and read its files: it is a secret.
    """
    from veilmeans.pipelines.configure.party_keys import revoke_run_tokens, write_token

    configured = Configured.load(config, run, changes)
    if revoke:
        return {**configured.facts, **_print_text(revoke_run_tokens(configured.settings))}
    target = write or config.with_name(f"{configured.settings.run}.token")
    return {**configured.facts, "file": str(target.resolve()), **_print_text(write_token(configured.settings, target))}


@add_command(app, "demo")
def demo(
    folder: Annotated[Path, typer.Option(help="folder for configurations, keys, data and results")] = Path("demo"),
    rows: Annotated[int, typer.Option(min=100, help="number of synthetic transactions")] = 10_000,
    exchange: Annotated[str, typer.Option(help="gateway or files")] = "gateway",
    dry_run: DryRun = False,
) -> Facts:
    """Two companies find fraud that neither sees alone, on this machine.

    A payment company and a merchant run as separate processes with synthetic data. The result is compared with
    plaintext K-means on both companies' data.
    """
    from veilmeans.pipelines.local.demo import dry_demo, run_demo

    if dry_run:
        return _print_text(dry_demo(folder, rows, exchange))
    run_demo(folder, rows, exchange)
    return {"folder": str(folder), "rows": rows}


@add_command(app, "version")
def version() -> Facts:
    """Print the version."""
    typer.echo(__version__)
    return {"version": __version__}
