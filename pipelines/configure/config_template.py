"""`veilmeans init`: configurations of a K-means run, one folder for each party and the dealer."""

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from veilmeans.io.storage.atomic_files import check_writable, write_text
from veilmeans.pipelines.configure.party_keys import make_keys
from veilmeans.schemas.config import load_config
from veilmeans.schemas.errors import ConfigError

_CONFIG = """\
# {party}'s side of the K-means run {run!r}. Paths are relative to this file. No secret stands here, only where it is.
party: {party}
run: {run} # a new name for new data or a changed configuration
parties: [{parties}] # in this order, at everyone
dealer: {dealer} # deals masks before the run; sees no data

certificate: keys/{party}.crt # `veilmeans keys --name {party} --out keys` makes these three
key: keys/{party}.key
seed: keys/{party}.seed
storage: storage # messages, shares, checkpoints and results

listen: {listen} # where our gateway listens
peers: # their certificates as they sent them to us, checked by fingerprint over another channel
{peers}
exchange:
  kind: {exchange} # gateway, or files through outboxes that the others may read
  outbox: outbox
  timeout_s: {timeout} # how long to wait for a peer

triples: # what `veilmeans offline` makes
  store: {store}
  runs: 1

kmeans: # alike at everyone, but for data, id and columns
{own}  layout: {layout} # vertical: same rows, each its own columns; horizontal: same columns, each its own rows
  rows: {rows}
  features: {features}
  clusters: {clusters}
  max_iter: {max_iter}
  tol: {tol} # stop when the centroids move less than this (squared, in sum); 0: never
  init: {{method: indices, seed: {seed}}} # random, indices or local
  normalise: {normalise}
  reveal: # who learns what at the end; all else stays shared
    assignments: [{parties}]
    centroids: [{parties}]
    columns: own
    inertia: [{parties}]
"""


@dataclass(frozen=True)
class Example:
    """What the examples are filled with."""

    parties: tuple[str, ...] = ("payco", "shop")
    dealer: str = "dealer"
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
    data: str = "data.csv"
    id: str = "id"

    @property
    def members(self) -> tuple[str, ...]:
        return (*self.parties, self.dealer)

    def port(self, name: str) -> int:
        return self.ports.get(name, 7101 + self.members.index(name))


def dry_init(folder: Path, example: Example, trial: bool) -> str:
    """All is written aside, because it must also be read without a mistake."""
    check_free(folder, example)
    with tempfile.TemporaryDirectory() as aside:
        try:
            (write_trial if trial else write_examples)(Path(aside), example)
        except ConfigError as error:
            raise ConfigError(error.sentence.replace(aside, str(folder))) from None
        files = sorted(file.relative_to(aside) for file in Path(aside).rglob("*") if file.is_file())
    check_writable(folder)
    return "\n".join(f"would write {folder / file}" for file in files)


def write_examples(folder: Path, example: Example) -> list[Path]:
    """A folder for each party and the dealer, with its configuration; existing files are left alone."""
    check_free(folder, example)
    files = []
    for name in example.members:
        file = folder / name / "config.yaml"
        write_text(file, config_text(name, example))
        load_config(file)
        (file.parent / "peers").mkdir(exist_ok=True)
        files.append(file)
    return files


def check_free(folder: Path, example: Example) -> None:
    """Refuse to overwrite a configuration."""
    for name in example.members:
        file = folder / name / "config.yaml"
        if file.exists():
            raise ConfigError(f"{file} exists already: choose another --out, or remove it")


def write_trial(folder: Path, example: Example) -> None:
    """Everyone on one machine: the examples, keys for a week, and each other's certificates."""
    write_examples(folder, example)
    for name in example.members:
        make_keys(name, folder / name / "keys", days=7)
    for name in example.members:
        for peer in example.members:
            if peer != name:
                shutil.copy(folder / peer / "keys" / f"{peer}.crt", folder / name / "peers")


def config_text(party: str, example: Example) -> str:
    """One party's configuration, with a word on each field."""
    vertical = example.layout == "vertical"
    widths = {name: example.features.get(name, 4) for name in example.parties}
    others = [name for name in example.members if name != party]
    peers = [
        f"  {peer}:\n    certificate: peers/{peer}.crt\n    address: 127.0.0.1:{example.port(peer)}\n"
        f"    outbox: ../{peer}/outbox"
        for peer in others
    ]
    own = f"  data: {example.data} # CSV, Parquet or Arrow; a file or a glob\n  id: {example.id}\n"
    return _CONFIG.format(
        party=party,
        run=example.run,
        parties=", ".join(example.parties),
        dealer=example.dealer,
        listen=f"127.0.0.1:{example.port(party)}",
        peers="\n".join(peers),
        exchange=example.exchange,
        timeout=example.timeout,
        store=example.run,
        own="" if party == example.dealer else own,
        layout=example.layout,
        rows=example.rows if vertical else _mapping(dict.fromkeys(example.parties, example.rows)),
        features=_mapping(widths) if vertical else next(iter(widths.values())),
        clusters=example.clusters,
        max_iter=example.max_iter,
        tol=f"{example.tol:.10f}".rstrip("0"),
        seed=example.seed,
        normalise="{method: minmax}" if vertical else "{method: minmax, aggregate: true}",
    )


def _mapping(numbers: Mapping[str, int]) -> str:
    return "{" + ", ".join(f"{name}: {number}" for name, number in numbers.items()) + "}"
