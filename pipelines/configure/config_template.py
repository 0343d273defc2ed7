"""Write the configurations of a K-means run, one folder for each party and the dealer, if any (`veilmeans init`)."""

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from veilmeans.io.files.atomic_files import check_writable, write_text
from veilmeans.pipelines.configure.party_keys import make_keys
from veilmeans.schemas.config import load_config
from veilmeans.schemas.errors import ConfigError

_CONFIG = """\
# {party}'s configuration of the K-means run {run!r}. Paths are relative to this file.
# It holds paths of secrets, never secrets.
party: {party}
run: {run} # a new name for new data or a changed configuration
parties: [{parties}] # the same order in every configuration
{dealer_line}{align_line}
certificate: keys/{party}.crt # `veilmeans config keys --name {party} --out keys` makes these three
key: keys/{party}.key
seed: keys/{party}.seed
storage: storage # folder for messages, shares, checkpoints and results

listen: {listen} # where this party's gateway listens
peers: # certificates as the peers sent them, compared by fingerprint over another channel
{peers}
exchange:
  kind: {exchange} # gateway, or files: outboxes that the peers can read
  outbox: outbox
  timeout_s: {timeout} # seconds to wait for a peer

triples: # correlated randomness for the run, made by {maker}
  store: {run}
  runs: 1

kmeans: # the same in every configuration, except data, id and columns
{own}  layout: {layout} # vertical: same rows, own columns; horizontal: same columns, own rows
  rows: {rows}
  features: {features}
  clusters: {clusters}
  max_iter: {max_iter}
  tol: {tol} # stop when the centroids move less than this (sum of squares); 0: never stop early
  init: {{method: indices, seed: {seed}}} # random, indices, local or k-means++
  normalise: {normalise}
  reveal: # which party learns which result; all else stays secret-shared
    assignments: [{parties}]
    centroids: [{parties}]
    columns: own
    inertia: [{parties}]
"""
_DEALER = "dealer: {dealer} # makes correlated randomness before the run; sees no data\n"
_ALIGN = "align: false # true, without kmeans.rows: those rows are used that all have, by their ids\n"


@dataclass(frozen=True)
class TemplateValues:
    """The values that are filled into the template."""

    parties: tuple[str, ...] = ("payco", "shop")
    dealer: str | None = None
    run: str = "first"
    layout: str = "vertical"
    rows: int = 10_000
    features: Mapping[str, int] = field(default_factory=dict)
    clusters: int = 5
    max_iter: int = 10
    tol: float = 0.0001
    seed: int = 1
    exchange: str = "gateway"
    timeout: int = 600
    ports: Mapping[str, int] = field(default_factory=dict)
    first_port: int = 7101
    data: str = "data.csv"
    id: str = "id"

    @property
    def members(self) -> tuple[str, ...]:
        """The parties, and the dealer if there is one."""
        return (*self.parties, *([self.dealer] if self.dealer else []))

    def port(self, name: str) -> int:
        """The port on which a member's gateway listens."""
        return self.ports.get(name, self.first_port + self.members.index(name))


def dry_init(folder: Path, values: TemplateValues, trial: bool) -> str:
    """Return the files that would be written; they are written to a temporary folder and checked there."""
    check_no_config(folder, values)
    with tempfile.TemporaryDirectory() as temporary:
        try:
            (write_trial if trial else write_configs)(Path(temporary), values)
        except ConfigError as error:
            raise ConfigError(error.sentence.replace(temporary, str(folder))) from None
        files = sorted(file.relative_to(temporary) for file in Path(temporary).rglob("*") if file.is_file())
    check_writable(folder)
    return "\n".join(f"would write {folder / file}" for file in files)


def write_configs(folder: Path, values: TemplateValues) -> list[Path]:
    """Write a folder with a configuration for each member; never overwrite one."""
    check_no_config(folder, values)
    files = []
    for name in values.members:
        file = folder / name / "config.yaml"
        write_text(file, config_text(name, values))
        load_config(file)
        (file.parent / "peers").mkdir(exist_ok=True)
        files.append(file)
    return files


def check_no_config(folder: Path, values: TemplateValues) -> None:
    """Refuse to overwrite a configuration."""
    for name in values.members:
        file = folder / name / "config.yaml"
        if file.exists():
            raise ConfigError(f"{file} exists already: choose another --out, or remove it")


def write_trial(folder: Path, values: TemplateValues) -> None:
    """Write the folders of all members for a trial on one machine: configurations, keys for a week, certificates."""
    write_configs(folder, values)
    for name in values.members:
        make_keys(name, folder / name / "keys", days=7)
    for name in values.members:
        for peer in set(values.members) - {name}:
            shutil.copy(folder / peer / "keys" / f"{peer}.crt", folder / name / "peers")


def config_text(party: str, values: TemplateValues) -> str:
    """Return one member's configuration, with a comment on each field."""
    vertical = values.layout == "vertical"
    widths = {name: values.features.get(name, 4) for name in values.parties}
    peers = [
        f"  {peer}:\n    certificate: peers/{peer}.crt\n    address: 127.0.0.1:{values.port(peer)}\n"
        f"    outbox: ../{peer}/outbox"
        for peer in values.members
        if peer != party
    ]
    own = f"  data: {values.data} # CSV, Parquet, Arrow, .npz or svmlight; a file or a glob\n  id: {values.id}\n"
    derived = {
        "parties": ", ".join(values.parties),
        "dealer_line": "" if values.dealer is None else _DEALER.format(dealer=values.dealer),
        "align_line": _ALIGN if vertical else "",
        "maker": "the parties (`train`, or `offline` before it)" if values.dealer is None else "`veilmeans offline`",
        "listen": f"127.0.0.1:{values.port(party)}",
        "peers": "\n".join(peers),
        "own": "" if party == values.dealer else own,
        "rows": values.rows if vertical else _mapping(dict.fromkeys(values.parties, values.rows)),
        "features": _mapping(widths) if vertical else next(iter(widths.values())),
        "tol": f"{values.tol:.10f}".rstrip("0"),
        "normalise": "{method: minmax}" if vertical else "{method: minmax, aggregate: true}",
    }
    return _CONFIG.format(**vars(values) | derived, party=party)


def _mapping(numbers: Mapping[str, int]) -> str:
    return "{" + ", ".join(f"{name}: {number}" for name, number in numbers.items()) + "}"
