"""A party's job configuration: one YAML file, checked once, frozen after.

Paths are relative to the file. Only paths of secrets stand here, never secrets, so a configuration may be pickled to a
worker, printed and logged.
"""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from veilmeans.schemas.address import NAME, NAME_RULE
from veilmeans.schemas.errors import ConfigError
from veilmeans.schemas.kmeans_config import ConfigSection, KMeansConfig, SumsJob
from veilmeans.schemas.party import Party


def _name(value: str) -> str:
    if not NAME.fullmatch(value):
        raise ValueError(f"{value!r} must be {NAME_RULE}")
    return value


def _host_and_port(value: str) -> str:
    host, _, port = value.rpartition(":")
    if not host or not port.isdigit() or not 0 <= int(port) < 65536:
        raise ValueError("must be host:port")
    return value


class Peer(ConfigSection):
    """Another party, or the dealer: where its gateway or outbox is, and the certificate it must show."""

    certificate: Path = Field(description="its certificate, as it was sent to us")
    address: str | None = Field(None, description="host:port of its gateway (exchange.kind: gateway)")
    outbox: str | None = Field(None, description="its outbox, readable by us (exchange.kind: files)")

    @field_validator("address")
    @classmethod
    def _address(cls, value: str | None) -> str | None:
        return value if value is None else _host_and_port(value)


class LinkShape(ConfigSection):
    """Slow the link down, to measure a LAN or a WAN on one machine."""

    rate_mbps: Annotated[float, Field(gt=0)] = Field(description="megabits per second")
    round_trip_ms: Annotated[float, Field(ge=0)] = Field(description="round-trip delay in milliseconds")


class ExchangeConfig(ConfigSection):
    """How messages travel."""

    kind: Literal["gateway", "files"] = Field("gateway", description="Arrow Flight gateways, or files in outboxes")
    outbox: str | None = Field(None, description="our outbox: a folder on any Beam filesystem (kind: files)")
    max_message_mb: Annotated[int, Field(ge=1, le=1024)] = Field(256, description="largest message, in MB")
    timeout_s: Annotated[float, Field(gt=0)] = Field(120, description="how long to wait for a peer before giving up")
    shape: LinkShape | None = None


class BeamConfig(ConfigSection):
    """How Beam runs the pipeline here. Parties need not agree on any of it but rows_per_shard."""

    runner: str = Field("DirectRunner", description="DirectRunner, PrismRunner, FlinkRunner, PortableRunner, …")
    workers: Annotated[int, Field(ge=1, le=64)] = Field(1, description="worker threads or processes of DirectRunner")
    spread: Literal["threads", "processes"] = Field(
        "threads",
        description="what several workers of DirectRunner are; work on ciphertexts is faster only with processes",
    )
    rows_per_shard: Annotated[int, Field(ge=1, le=1 << 24)] = Field(65_536, description="rows in one shard")
    state: Literal["auto", "memory", "scratch", "value"] = Field(
        "auto",
        description="where states wait at the barrier; auto: in memory on DirectRunner, up to 2 million rows; else in "
        "scratch",
    )
    rounds: Literal["auto", "stages", "whole"] = Field(
        "auto",
        description="stages: each round is a Beam stage over shards; whole: one call runs all rounds of an iteration; "
        "auto: whole for up to 131,072 rows",
    )
    attempts: Annotated[int, Field(ge=1, le=10)] = Field(3, description="how often a failed pipeline is run at most")
    options: tuple[str, ...] = Field((), description="further Beam options, as on a command line")

    @property
    def in_processes(self) -> bool:
        """Whether DirectRunner's workers are processes of their own."""
        return self.workers > 1 and self.spread == "processes"


class TriplesConfig(ConfigSection):
    """A store of correlated randomness: what it is made for. Agreed by all; `veilmeans offline` makes it."""

    store: Annotated[str, Field(max_length=74)] = Field(
        description="the store's name; a new one for other shapes or when the old one is used up"
    )
    rows: Annotated[int, Field(ge=1)] | None = Field(
        None, description="rows of the data (sums; k-means says it itself)"
    )
    runs: Annotated[int, Field(ge=1)] = Field(1, description="how many runs it shall serve")
    iterations: Annotated[int, Field(ge=1)] | None = Field(
        None, description="how many iterations each of them may take; none: the job's max_iter"
    )

    _check_names = field_validator("store")(_name)


_IN_MEMORY = 1 << 21
"""Rows whose states may wait in memory."""


class JobConfig(ConfigSection):
    """Everything one party needs to take part in a run."""

    party: str = Field(description="our name, as our certificate is made out to")
    run: str = Field(description="the run's name, agreed by all; a new one for new data or a new configuration")
    parties: Annotated[tuple[str, ...], Field(min_length=2)] = Field(description="all parties in the agreed order")
    dealer: str | None = Field(None, description="who deals correlated randomness; never sees data")
    certificate: Path = Field(description="our certificate, of which every peer has a copy")
    key: Path = Field(description="our private key (0600)")
    seed: Path = Field(description="the seed of our masks (0600)")
    storage: Path = Field(description="our folder for messages, state and results")
    scratch: str | None = Field(None, description="folder for engine.state: scratch; default: storage/scratch")
    listen: str | None = Field(None, description="host:port on which our gateway listens")
    gateway: Literal["embedded", "separate"] = Field(
        "embedded", description="run the gateway inside this process, or use one that `veilmeans gateway` started"
    )
    peers: dict[str, Peer]
    exchange: ExchangeConfig = ExchangeConfig()
    engine: BeamConfig = BeamConfig()
    triples: TriplesConfig | None = None
    kmeans: KMeansConfig | None = None
    sums: SumsJob | None = None

    @field_validator("party", "run", "parties", "dealer", "peers")
    @classmethod
    def _names(cls, value: Any) -> Any:
        for name in [value] if isinstance(value, str) else value or ():
            _name(name)
        return value

    @field_validator("listen")
    @classmethod
    def _listen(cls, value: str | None) -> str | None:
        return value if value is None else _host_and_port(value)

    @model_validator(mode="after")
    def _consistent(self) -> "JobConfig":
        if len(set(self.parties)) != len(self.parties):
            raise ValueError("parties: a name stands there twice")
        if self.run.startswith("store-"):
            raise ValueError("run: names that begin with 'store-' are for `veilmeans offline`")
        if self.dealer in self.parties:
            raise ValueError("dealer: must not be one of the parties, it would know the other's masks")
        members = {*self.parties, self.dealer} - {None}
        if self.party not in members:
            raise ValueError(f"party: {self.party!r} is neither in parties nor the dealer")
        if members - {self.party} != set(self.peers):
            raise ValueError(f"peers: must be exactly {', '.join(sorted(filter(None, members - {self.party})))}")
        self._check_exchange()
        self._check_kmeans()
        return self

    def _check_kmeans(self) -> None:
        job = self.kmeans
        if job is None:
            return
        if self.sums is not None:
            raise ValueError("kmeans: a configuration has one job, and there is sums, too")
        if job.predict is not None and job.predict.model == self.run:
            raise ValueError("kmeans.predict.model: must differ from run, which is the prediction's own name")
        for field, value in (("rows", job.rows), ("features", job.features)):
            if isinstance(value, dict) and set(value) != set(self.parties):
                raise ValueError(f"kmeans.{field}: must name exactly {', '.join(self.parties)}")
        named = {f"reveal.{field}": getattr(job.reveal, field) for field in ("assignments", "centroids", "inertia")}
        named |= {"sparse": job.sparse, "products": job.products if isinstance(job.products, dict) else ()}
        for field, names in named.items():
            strangers = set(names) - set(self.parties)
            if strangers:
                raise ValueError(f"kmeans.{field}: {min(strangers)!r} is none of the parties")

    def _check_exchange(self) -> None:
        if self.exchange.kind == "gateway":
            missing = [name for name, peer in self.peers.items() if peer.address is None]
            if missing:
                raise ValueError(f"peers.{missing[0]}.address: needed, because exchange.kind is gateway")
            if self.listen is None:
                raise ValueError("listen: needed, because exchange.kind is gateway")
        else:
            missing = [name for name, peer in self.peers.items() if peer.outbox is None]
            if missing:
                raise ValueError(f"peers.{missing[0]}.outbox: needed, because exchange.kind is files")
            if self.exchange.outbox is None:
                raise ValueError("exchange.outbox: needed, because exchange.kind is files")

    @property
    def me(self) -> Party:
        """Our place among the parties (a dealer has none)."""
        return Party(self.parties.index(self.party), self.parties)

    @property
    def limit(self) -> int:
        """Bytes in the largest message."""
        return self.exchange.max_message_mb * 1_000_000

    @property
    def run_folder(self) -> Path:
        return self.storage / "runs" / self.run

    @property
    def store_folder(self) -> Path:
        """Where this party's store of correlated randomness is."""
        return self.storage / "triples" / self.required_triples.store

    @property
    def required_triples(self) -> TriplesConfig:
        """The store's description; a ConfigError if the configuration has none."""
        if self.triples is None:
            raise ConfigError(f"the configuration of {self.party} describes no store of triples: add `triples:`")
        return self.triples

    @property
    def required_kmeans(self) -> KMeansConfig:
        """The K-means job; a ConfigError if the configuration has none."""
        if self.kmeans is None:
            raise ConfigError(f"the configuration of {self.party} has no K-means job: add `kmeans:`")
        return self.kmeans

    def online(self) -> "JobConfig":
        """The same without the dealer, who has no part in a run: its certificate is not even pinned."""
        peers = {name: peer for name, peer in self.peers.items() if name in self.parties}
        return self.model_copy(update={"peers": peers})

    def offline(self) -> "JobConfig":
        """The same for making the store: the store takes the run's place in every address."""
        return self.model_copy(update={"run": f"store-{self.required_triples.store}"})

    @property
    def scratch_root(self) -> str:
        """Where states wait at the barrier: "value", "memory/<party>", or a folder."""
        state = self.engine.state
        if state == "auto":
            in_one_process = self.engine.runner == "DirectRunner" and not (
                self.engine.in_processes or any("multi_processing" in option for option in self.engine.options)
            )
            state = "memory" if in_one_process and self._rows <= _IN_MEMORY else "scratch"
        if state == "scratch":
            return self.scratch or str(self.storage / "scratch")
        return f"memory/{self.party}" if state == "memory" else state

    @property
    def _rows(self) -> int:
        """Of the K-means job, all parties' together."""
        rows = self.kmeans.rows if self.kmeans else 0
        return rows if isinstance(rows, int) else sum(rows.values())

    def with_flags(self, flags: Sequence[str]) -> "JobConfig":
        """The same with Beam flags from the command line; --runner replaces the configured runner."""
        if not flags:
            return self
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        parser.add_argument("--runner", default=self.engine.runner)
        known, others = parser.parse_known_args(list(flags))
        engine = {"runner": known.runner, "options": (*self.engine.options, *others)}
        return self.model_copy(update={"engine": self.engine.model_copy(update=engine)})


def kmeans_with_data(config: JobConfig) -> KMeansConfig:
    """The job in a party's configuration, checked to be whole."""
    job = config.required_kmeans
    if config.party not in config.parties:
        raise ConfigError(f"{config.party} is the dealer of this run: start it with `veilmeans offline`")
    if job.data is None:
        raise ConfigError(f"the configuration of {config.party} needs kmeans.data: where its rows are")
    return job


def declared_shape(config: JobConfig, job: KMeansConfig) -> tuple[int, int]:
    """How many rows and columns this party has, as the job says."""
    rows, features = (value[config.party] if isinstance(value, dict) else value for value in (job.rows, job.features))
    return rows, features


def load_config(file: Path) -> JobConfig:
    """Read and check a configuration; a mistake is one sentence with the file and the field."""
    return parse_config(read_config(file), file)


def read_config(file: Path) -> str:
    """The text of a configuration."""
    try:
        return file.read_text()
    except OSError as error:
        here = "" if file.is_absolute() else f"; the path counts from {Path.cwd()}, where this command was started"
        raise ConfigError(f"the configuration {file} cannot be read: {error.strerror}{here}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is no YAML") from None


def parse_config(text: str, file: Path) -> JobConfig:
    """The configuration that a text is, as if it stood in the file."""
    try:
        raw = yaml.safe_load(text)
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f" in line {where.line + 1}" if where else ""
        raise ConfigError(f"{file} is no YAML{line}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{file} must be a mapping of fields, as `veilmeans demo` writes one")
    try:
        return JobConfig.model_validate(_resolved(raw, file.resolve().parent))
    except ValidationError as error:
        raise ConfigError(f"{file}: {_first_mistake(error)}") from None


_KIND = re.compile(r"int|(literal|dict|union)\[.*|[A-Z]\w*Config")
"""What pydantic adds to a field's name where it may be one or the other."""
_FIELD = re.compile(r"[a-z_]+(\.\w+)*: ")
"""A sentence that begins with the name of a field below."""


def _first_mistake(error: ValidationError) -> str:
    """The first; where a field may be one or the other, what is wrong with the one that fits best."""
    mistakes = [(_field(each["loc"]), each["msg"]) for each in error.errors(include_url=False)]
    field, what = max((each for each in mistakes if each[0].startswith(mistakes[0][0])), key=lambda each: len(each[0]))
    what = what.removeprefix("Value error, ")
    below = field and _FIELD.match(what)
    return f"{field}.{what}" if below else f"{field}: {what}" if field else what


def _field(place: Sequence[int | str]) -> str:
    return ".".join(str(part) for part in place if not _KIND.fullmatch(str(part)))


def _resolved(raw: dict[str, Any], base: Path) -> dict[str, Any]:
    """The same fields with paths made absolute; anything malformed is left for the schema to name."""

    def local(value: Any) -> Any:
        return str(base / value) if isinstance(value, str) and "://" not in value else value

    paths = {"certificate", "key", "seed", "storage", "scratch", "outbox", "data"}

    def walk(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: local(v) if k in paths and isinstance(v, str) else walk(v) for k, v in value.items()}
        return value

    return {name: walk({name: value})[name] for name, value in raw.items()}
