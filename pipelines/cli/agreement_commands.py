"""Commands by which separate companies agree on a run: `invite`, `join`, `accept`, `refuse`, `propose`."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.table import Table

from veilmeans.pipelines.cli.app import Changes, Configured, Dealer, DryRun, Run, app, config_app
from veilmeans.pipelines.cli.json_output import Facts, add_command
from veilmeans.pipelines.reporting.terminal import Terminal
from veilmeans.schemas.errors import ConfigError

_LAYOUT_HELP = "vertical (default): same rows, own columns; horizontal: same columns, own rows"
_ADDRESS_HELP = "HOST:PORT under which the others reach this member"
_LISTEN_HELP = "HOST:PORT on which it listens; default: that port, on all interfaces"
_DATA_HELP = "this party's data; default: data.csv beside the configuration"
_ROWS_HELP = "number of rows, if the data are not there yet"
_ALIGN_HELP = "vertical: the parties' rows differ, or their order; `train` finds those that all have, by their ids"
_COLUMNS_HELP = "number of columns after encoding, if the data are not there yet"

OwnConfig = Annotated[Path, typer.Option("--config", "-c", help="this member's configuration")]
Received = Annotated[Path, typer.Argument(help="the file that another member sent", metavar="FILE")]
Listen = Annotated[str | None, typer.Option(help=_LISTEN_HELP, metavar="HOST:PORT")]
Data = Annotated[str | None, typer.Option(help=_DATA_HELP)]
Rows = Annotated[int | None, typer.Option(min=1, help=_ROWS_HELP)]
Columns = Annotated[int | None, typer.Option(min=1, help=_COLUMNS_HELP)]
Days = Annotated[int, typer.Option(min=1, max=365, help="days for which the file is valid")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="consent without being asked, for scripts")]
_CONFIG = Path("config.yaml")


@add_command(app, "invite")
def invite(
    address: Annotated[str, typer.Option(help=_ADDRESS_HELP, metavar="HOST:PORT")],
    name: Annotated[str | None, typer.Option("--name", "-n", help="this company's name in the run")] = None,
    others: Annotated[str | None, typer.Option("--with", help="the other parties' names, separated by commas")] = None,
    dealer: Dealer = None,
    clusters: Annotated[int | None, typer.Option(min=1, help="number of clusters")] = None,
    layout: Annotated[Literal["vertical", "horizontal"] | None, typer.Option(help=_LAYOUT_HELP)] = None,
    align: Annotated[bool | None, typer.Option("--align", help=_ALIGN_HELP)] = None,
    run: Annotated[str | None, typer.Option(help="the run's name; default: first")] = None,
    data: Data = None,
    rows: Rows = None,
    columns: Columns = None,
    listen: Listen = None,
    days: Days = 14,
    config: OwnConfig = _CONFIG,
    write: Annotated[Path | None, typer.Option(help="the file to write; default: NAME-invitation.json")] = None,
    dry_run: DryRun = False,
) -> Facts:
    """Invite other companies to a run: one file to send.

    In the folder with your data.csv: `veilmeans invite --name payco --with shop --clusters 3 --address
    payco.example:7101`. It makes your keys and config.yaml, and writes payco-invitation.json with your certificate,
    your address and the terms of the run; nothing in it is secret. The others answer with `veilmeans join`. Where
    config.yaml exists, its terms are sent, and only --address is needed.
    """
    from veilmeans.pipelines.configure.agreement.invite import OwnPart, Wanted
    from veilmeans.pipelines.configure.agreement.invite import invite as run_invite
    from veilmeans.pipelines.configure.predict_config import relative_to_config

    own = OwnPart(config, address, listen, relative_to_config(config, data), rows, columns)
    wanted = Wanted(name, tuple(others.split(",")) if others else (), dealer, layout, clusters, run, align)
    return _print_text(run_invite(own, wanted, days, write, dry_run), config)


@add_command(app, "join")
def join(
    file: Received,
    address: Annotated[str | None, typer.Option(help=_ADDRESS_HELP, metavar="HOST:PORT")] = None,
    name: Annotated[
        str | None, typer.Option("--name", "-n", help="this company's name, if several are invited")
    ] = None,
    data: Data = None,
    rows: Rows = None,
    columns: Columns = None,
    listen: Listen = None,
    yes: Yes = False,
    config: OwnConfig = _CONFIG,
    dry_run: DryRun = False,
) -> Facts:
    """Join a run by an invitation: see its terms, and reply.

    In the folder with your data.csv: `veilmeans join payco-invitation.json --address shop.example:7101`. It shows the
    terms and asks for consent; then it makes your keys and config.yaml, and writes shop-reply.json to send back. When
    all have joined, everyone sees the same six words: compare them over the phone before you run anything.
    """
    from veilmeans.pipelines.configure.agreement.invite import OwnPart
    from veilmeans.pipelines.configure.agreement.join import join as run_join
    from veilmeans.pipelines.configure.agreement.signed_file import Invitation, read_signed
    from veilmeans.pipelines.configure.predict_config import relative_to_config

    received = read_signed(file)
    if not isinstance(received.body, Invitation):
        return accept(file, yes, config, dry_run)
    if address is None:
        raise ConfigError("--address is needed: HOST:PORT under which the other members reach you")
    own = OwnPart(config, address, listen, relative_to_config(config, data), rows, columns)
    return _print_text(run_join(received, received.body, own, name, _Asker(yes or dry_run), dry_run), config)


@add_command(app, "accept")
def accept(file: Received, yes: Yes = False, config: OwnConfig = _CONFIG, dry_run: DryRun = False) -> Facts:
    """Accept a reply, an agreement, a proposal or an answer.

    A reply to your invitation completes your configuration. An agreement has all members of a run with more than two. A
    proposal is shown as a difference, and you are asked; your answer is written to a file. An answer to your proposal
    applies it when all have accepted. A file is used once.
    """
    from veilmeans.pipelines.configure.agreement.proposals import accept_answer, accept_decision, answer
    from veilmeans.pipelines.configure.agreement.replies import accept_agreement, accept_reply
    from veilmeans.pipelines.configure.agreement.signed_file import (
        Agreement,
        Answer,
        Decision,
        Proposal,
        Reply,
        read_signed,
    )

    received = read_signed(file)
    match received.body:
        case Reply() as body:
            done = accept_reply(received, body, config, dry_run)
        case Agreement() as body:
            done = accept_agreement(received, body, config, dry_run)
        case Proposal() as body:
            done = answer(received, body, config, _Asker(yes or dry_run), dry_run)
        case Answer() as body:
            done = accept_answer(received, body, config, dry_run)
        case Decision() as body:
            done = accept_decision(received, body, config, dry_run)
        case _:
            raise ConfigError(f"{file} is an invitation: `veilmeans join {file} --address HOST:PORT`")
    return _print_text(done, config)


@add_command(app, "refuse")
def refuse(file: Received, config: OwnConfig = _CONFIG, dry_run: DryRun = False) -> Facts:
    """Refuse a proposal: nothing is changed, and an answer says so.

    An invitation that you do not want needs no answer: it expires.
    """
    from veilmeans.pipelines.configure.agreement.proposals import answer
    from veilmeans.pipelines.configure.agreement.signed_file import Proposal, read_signed

    received = read_signed(file)
    if not isinstance(received.body, Proposal):
        raise ConfigError(f"{file} is of the kind {received.kind}, and only a proposal can be refused")
    return _print_text(answer(received, received.body, config, None, dry_run), config)


@add_command(app, "propose")
def propose(
    changes: Annotated[
        list[str] | None, typer.Argument(help="such as kmeans.clusters=4", metavar="[FIELD=VALUE]...")
    ] = None,
    keys: Annotated[Path | None, typer.Option(help="folder with this member's new certificate and key")] = None,
    address: Annotated[str | None, typer.Option(help="new HOST:PORT of this member", metavar="HOST:PORT")] = None,
    days: Days = 14,
    config: OwnConfig = _CONFIG,
    dry_run: DryRun = False,
) -> Facts:
    """Propose a change of agreed fields, a certificate or an address.

    `veilmeans propose kmeans.clusters=4 run=second triples.store=second` writes payco-proposal.json. The others accept
    or refuse it and send an answer back; nothing changes until all have accepted. Fields that are not agreed with
    others are changed with `veilmeans config set`.
    """
    from veilmeans.pipelines.configure.agreement.proposals import propose as run_propose

    return _print_text(run_propose(config, changes or (), keys, address, days, dry_run), config)


@add_command(config_app, "config words")
def words(config: OwnConfig = _CONFIG, run: Run = None, changes: Changes = None) -> Facts:
    """Show the six words of what is agreed, to compare by phone.

    They stand for all members' certificates as they are pinned here and for all agreed fields. Members whose words are
    the same have agreed on the same.
    """
    from veilmeans.pipelines.configure.agreement.shared_terms import agreed_words

    configured = Configured.load(config, run, changes)
    spoken = agreed_words(configured.settings)
    typer.echo(spoken)
    return {**configured.facts, "words": spoken}


def _print_text(text: str, config: Path) -> Facts:
    typer.echo(text)
    return {"config": str(config.resolve()), "text": text}


class _Asker:
    """Show a table on the terminal and ask for consent."""

    def __init__(self, consents: bool) -> None:
        self.consents = consents

    def __call__(self, table: Table, question: str) -> None:
        Terminal().print(table)
        if not self.consents and not self._confirmed(question):
            raise ConfigError("no consent, so nothing was written; --yes consents without a question")

    def _confirmed(self, question: str) -> bool:
        try:
            return typer.confirm(question)
        except typer.Abort:  # no terminal
            return False
