"""A party's configuration: one YAML file, checked when it is read, frozen afterwards.

Paths are relative to the file. It holds paths of secrets, never secrets, so a configuration may be pickled, printed and
logged.
"""

import argparse
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, ValidationError, model_validator

from veilmeans.schemas.address import ALIGN_RUN, COUNT_RUN, STORE_RUN, checked_name
from veilmeans.schemas.config_fields import (
    AGREED_BY_ALL,
    AGREED_IN_RUNS,
    AGREED_OFFLINE,
    CONNECTION,
    PATH,
    REVEAL_POLICY,
    Agreed,
    ConfigSection,
    Name,
    NameList,
    check_capacity,
    map_paths,
)
from veilmeans.schemas.errors import ConfigError
from veilmeans.schemas.kmeans_config import REVEALED, AlignConfig, Counts, KMeansConfig, Swept, section_or_none
from veilmeans.schemas.party import Party
from veilmeans.schemas.run_folder import AlignmentFolder, LedgerFolder, RunFolder, StorageFolder, StoreFolder


def _host_and_port(value: str) -> str:
    host, _, port = value.rpartition(":")
    if not host or not port.isdigit() or not 0 <= int(port) < 65536:
        raise ValueError("must be host:port")
    return value


HostAndPort = Annotated[str, AfterValidator(_host_and_port)]


_AGREED_FOR_STORE = Agreed(("offline", "train", "predict"))
"""The protocols depend on it, and with them the triple store."""


class Peer(ConfigSection):
    """A peer, which is another party or the dealer: its address and its certificate."""

    certificate: Annotated[Path, PATH] = Field(description="its certificate, as it sent it to us")
    address: HostAndPort | None = Field(None, description="host:port of its gateway (exchange.kind: gateway)")
    outbox: Annotated[str | None, PATH] = Field(None, description="its outbox, readable by us (exchange.kind: files)")


class LinkShape(ConfigSection):
    """A slower link, to measure a LAN or a WAN on one machine."""

    rate_mbps: float = Field(gt=0, description="megabits per second")
    round_trip_ms: float = Field(ge=0, description="round-trip delay in milliseconds")


class LinkConfig(ConfigSection):
    """The link between the parties as it is, by which protocols are chosen and runs are planned."""

    rate_mbps: Annotated[float, _AGREED_FOR_STORE] = Field(1000, gt=0, allow_inf_nan=False)
    """megabits per second; a low one makes bytes dear, and protocols with fewer bytes and more rounds are chosen"""
    round_trip_ms: Annotated[float, _AGREED_FOR_STORE] = Field(0.5, ge=0, allow_inf_nan=False)
    """round-trip delay in milliseconds"""


class ExchangeConfig(ConfigSection):
    """The exchange of messages with the peers."""

    kind: Literal["gateway", "files"] = Field("gateway", description="Arrow Flight gateways, or files in outboxes")
    outbox: Annotated[str | None, PATH] = None
    """our outbox: a folder on any Beam filesystem (kind: files)"""
    max_message_mb: int = Field(256, ge=1, le=1024, description="largest message, in MB")
    timeout_s: float = Field(120, gt=0, description="seconds to wait for a peer")
    shape: LinkShape | None = None


class WorkersConfig(ConfigSection):
    """The way of workers that see nothing of this party but `shared` to its gateway."""

    listen: HostAndPort = Field(description="host:port on which our gateway accepts our workers, and nobody else")
    address: HostAndPort | None = Field(None, description="host:port at which workers reach it; default: listen")
    token: Annotated[Path | None, PATH] = None
    """file with the workers' token, where they run (`veilmeans config token` makes it); default: a mounted secret, or
    the environment"""


class BeamConfig(ConfigSection):
    """Beam's runner and its settings for this party's pipelines."""

    runner: str = Field("DirectRunner", description="DirectRunner, PrismRunner, FlinkRunner, PortableRunner, …")
    workers: int = Field(1, ge=1, le=64, description="worker threads or processes of DirectRunner")
    worker_type: Literal["threads", "processes"] = "threads"
    """how DirectRunner runs several workers; work on ciphertexts uses all cores in either case"""
    rows_per_shard: Annotated[int, AGREED_BY_ALL] = Field(65_536, ge=1, le=1 << 24, description="rows in one row shard")
    values_per_column_shard: Annotated[int, AGREED_BY_ALL] = Field(262_144, ge=1, le=1 << 28)
    """values of the centroids (clusters × columns) in one column shard; at least one column"""
    state: Literal["auto", "memory", "scratch", "value"] = "auto"
    """where the states of shards are kept between stages; auto: in memory on DirectRunner, up to 2 million rows; else
    in scratch"""
    rounds: Literal["auto", "stages", "one_call"] = "auto"
    """stages: each round is a Beam stage over shards; one_call: one call runs all rounds of an iteration; auto:
    one_call for up to 131,072 rows"""
    attempts: int = Field(3, ge=1, le=10, description="how many times a failing pipeline is run at most")
    options: tuple[str, ...] = Field((), description="further Beam options, as on a command line")

    @property
    def in_processes(self) -> bool:
        """True if DirectRunner runs its workers as processes."""
        return self.workers > 1 and self.worker_type == "processes"

    @property
    def in_one_process(self) -> bool:
        """True if all workers are threads of one process."""
        other_processes = self.in_processes or any("multi_processing" in option for option in self.options)
        return self.runner == "DirectRunner" and not other_processes


Provider = Literal["dealer", "ot", "iknp"]


class AuditConfig(ConfigSection):
    """Material of a run that is kept for audits, beside the digests of all messages."""

    keep: bool = False
    """keep the peers' messages, and all shares and triples of a run, so that `veilmeans audit` can replay it; what is
    kept stays secret only as long as the storage does"""


class OpeningsConfig(ConfigSection):
    """A bound on what is opened of the same data by all runs, predictions and reveals."""

    limit: Annotated[Annotated[int, Field(ge=1)] | None, REVEAL_POLICY] = None
    """largest number of openings of the same rows, counted by each party for its own (`veilmeans openings`); default:
    none"""


class TriplesConfig(ConfigSection):
    """A triple store: correlated randomness for a number of runs. `veilmeans offline` makes it."""

    store: Annotated[Name, AGREED_IN_RUNS] = Field(max_length=74)
    """the store's name; a new one for other shapes or when the old one is used up"""
    runs: Annotated[int, AGREED_OFFLINE] = Field(1, ge=1, description="number of runs that it serves")
    iterations: Annotated[Annotated[int, Field(ge=1)] | None, AGREED_OFFLINE] = None
    """largest number of iterations of each run; default: kmeans.max_iter"""
    rows: Annotated[Counts | None, _AGREED_FOR_STORE] = None
    """capacity: the largest number of rows of a run (vertical: one number, horizontal: one for each party), so that one
    store serves runs of fewer rows, too; default: kmeans.rows, which all runs must have then"""
    provider: Annotated[Provider | None, _AGREED_FOR_STORE] = None
    """who makes it: the dealer, or the parties themselves by silent oblivious transfer (ot) or by IKNP's (iknp: more
    bytes, no LPN assumption); default: dealer if one is named, else ot"""
    ledger: Annotated[Path | None, PATH] = None
    """folder of the second ledger of all stores' claims, which must not be backed up nor restored with storage: it
    shows that a store comes from a backup; default: storage with the ending .ledger, beside it"""


_AGREED_RUN_NAME = Agreed(("reveal",))
"""Other handshakes need not compare it: the run names their messages. An opening has a name of its own."""
_AGREED_PARTIES = replace(AGREED_BY_ALL, commands=(*AGREED_BY_ALL.commands, "align"), of_model=True)
_IN_MEMORY = 1 << 21  # largest number of rows whose states are kept in memory


class JobConfig(ConfigSection):
    """Everything that one party needs to take part in a run."""

    party: Annotated[Name, CONNECTION] = Field(description="our name, as in our certificate")
    run: Annotated[Name, _AGREED_RUN_NAME]
    """the run's name; a new one for new data or a new configuration"""
    parties: Annotated[NameList, _AGREED_PARTIES] = Field(min_length=2)
    """all parties, in one order"""
    dealer: Annotated[Name | None, AGREED_BY_ALL] = None
    """who deals correlated randomness and never sees data"""
    certificate: Annotated[Path, PATH, CONNECTION]
    """our certificate, of which every peer has a copy"""
    key: Annotated[Path, PATH, CONNECTION] = Field(description="our private key (0600)")
    seed: Annotated[Path, PATH] = Field(description="the seed of our masks (0600)")
    storage: Annotated[Path, PATH, CONNECTION] = Field(description="our folder for messages, states and results")
    scratch: Annotated[str | None, PATH] = None
    """folder for beam.state: scratch; default: storage/scratch"""
    shared: Annotated[str | None, PATH, CONNECTION] = None
    """gs://…, s3://…, hdfs://… or a mounted folder: where driver and workers on several hosts keep what they share,
    sealed under our seed; default: storage, on one host"""
    workers: Annotated[WorkersConfig | None, CONNECTION] = None
    """for workers without our key and seed (needs shared)"""
    listen: Annotated[HostAndPort | None, CONNECTION] = None
    """host:port on which our gateway listens"""
    gateway: Annotated[Literal["embedded", "separate"], CONNECTION] = "embedded"
    """run the gateway inside this process, or use one that `veilmeans gateway` started"""
    peers: Annotated[dict[Name, Peer], CONNECTION]
    exchange: Annotated[ExchangeConfig, CONNECTION] = ExchangeConfig()
    link: LinkConfig = LinkConfig()
    beam: BeamConfig = BeamConfig()
    audit: AuditConfig = AuditConfig()
    openings: OpeningsConfig = OpeningsConfig()
    triples: TriplesConfig | None = None
    align: Annotated[AlignConfig | None, BeforeValidator(section_or_none)] = None
    """none: vertical rows are aligned already; true, or a section: `align` and `train` align them by kmeans.id"""
    kmeans: KMeansConfig | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "JobConfig":
        if len(set(self.parties)) != len(self.parties):
            raise ValueError("parties: a party is named twice")
        for prefix, command in (
            (STORE_RUN, "offline"),
            (ALIGN_RUN, "align"),
            (COUNT_RUN, "align"),
            ("open-", "reveal"),
        ):
            if self.run.startswith(prefix):
                raise ValueError(f"run: must not begin with '{prefix}', which names the runs of `veilmeans {command}`")
        if self.dealer in self.parties:
            raise ValueError("dealer: must not be one of the parties: it knows all masks")
        members = {*self.parties, self.dealer} - {None}
        if self.party not in members:
            raise ValueError(f"party: {self.party!r} is neither in parties nor the dealer")
        if members - {self.party} != set(self.peers):
            raise ValueError(f"peers: must be exactly {', '.join(sorted(filter(None, members - {self.party})))}")
        if self.ledger_folder.path.is_relative_to(self.storage):
            raise ValueError("triples.ledger: must be outside storage, or it would be restored with it")
        self._check_provider()
        self._check_exchange()
        self._check_kmeans()
        return self

    def _check_provider(self) -> None:
        asked = self.triples.provider if self.triples is not None else None
        if asked == "dealer" and self.dealer is None:
            raise ValueError("triples.provider: dealer needs a dealer: name one in dealer, or set ot")
        if asked in ("ot", "iknp") and self.dealer is not None:
            raise ValueError(f"triples.provider: {asked} goes without a dealer: leave out dealer ({self.dealer})")

    def _check_kmeans(self) -> None:
        job = self.kmeans
        if job is None:
            return
        if job.predict is not None and job.predict.model == self.run:
            raise ValueError("kmeans.predict.model: must differ from run, which is the prediction's own name")
        self._check_align(job)
        for field, value in (("rows", job.rows), ("features", job.features)):
            if isinstance(value, dict) and set(value) != set(self.parties):
                raise ValueError(f"kmeans.{field}: must name exactly {', '.join(self.parties)}")
        self._check_capacity(job)
        named = {f"reveal.{field}": getattr(job.reveal, field) for field in REVEALED}
        named |= {"sparse": job.sparse, "products": job.products if isinstance(job.products, dict) else ()}
        for field, names in named.items():
            strangers = set(names) - set(self.parties)
            if strangers:
                raise ValueError(f"kmeans.{field}: {min(strangers)!r} is not one of the parties")

    def _check_capacity(self, job: KMeansConfig) -> None:
        if self.triples is not None and self.triples.rows is not None:
            check_capacity(self.triples.rows, job.rows, self.parties, job.vertical)

    def _check_align(self, job: KMeansConfig) -> None:
        if self.align is None:
            if job.rows is None:
                raise ValueError("kmeans.rows: needed, unless align is true: then it is the number of common rows")
            return
        if not job.vertical:
            raise ValueError("align: only for layout vertical; horizontally each party has rows of its own, unaligned")
        if job.id is None and self.party in self.parties:
            raise ValueError("align: needs kmeans.id, our column with the rows' ids")
        if self.align.reveal == "size" and len(self.parties) > 2:
            raise ValueError("align.reveal: size is for two parties; among more, sizes of pairs would show too much")
        if len(self.alignment) > 74:
            raise ValueError("align.name: needed, because the run's name has more than 74 characters")

    def _check_exchange(self) -> None:
        if self.exchange.kind == "gateway":
            needed = {f"peers.{name}.address": peer.address for name, peer in self.peers.items()}
            needed["listen"] = self.listen
        else:
            needed = {f"peers.{name}.outbox": peer.outbox for name, peer in self.peers.items()}
            needed["exchange.outbox"] = self.exchange.outbox
        for field, value in needed.items():
            if value is None:
                raise ValueError(f"{field}: needed, because exchange.kind is {self.exchange.kind}")
        if self.workers is not None and (self.shared is None or self.exchange.kind != "gateway"):
            raise ValueError("workers: needs shared, and exchange.kind gateway")

    @property
    def me(self) -> Party:
        """This party's place among the parties; the dealer has none."""
        return Party(self.parties.index(self.party), self.parties)

    @property
    def members(self) -> tuple[str, ...]:
        """The parties, and the dealer if there is one."""
        return (*self.parties, *([self.dealer] if self.dealer else []))

    @property
    def provider(self) -> Provider:
        """The maker of the triple store: as configured, else the dealer if one is named, else the parties by OT."""
        asked = self.triples.provider if self.triples is not None else None
        return asked or ("dealer" if self.dealer else "ot")

    @property
    def max_message_bytes(self) -> int:
        """The size of the largest message, in bytes."""
        return self.exchange.max_message_mb * 1_000_000

    @property
    def storage_folder(self) -> StorageFolder:
        """The names of everything below `storage`."""
        return StorageFolder(self.storage)

    @property
    def run_folder(self) -> RunFolder:
        """The folder of what this party keeps of the run."""
        return self.storage_folder.run(self.run)

    @property
    def store_folder(self) -> StoreFolder:
        """This party's part of the triple store."""
        return self.storage_folder.store(self.required_triples.store)

    @property
    def ledger_folder(self) -> LedgerFolder:
        """The folder of this party's ledgers, outside `storage`."""
        configured = self.triples.ledger if self.triples is not None else None
        return LedgerFolder(configured or self.storage.with_name(f"{self.storage.name}.ledger"))

    @property
    def alignment(self) -> str:
        """The alignment's name."""
        return (self.align.name if self.align else None) or self.run

    @property
    def alignment_folder(self) -> AlignmentFolder:
        """This party's rows as they were aligned, and what it keeps until then."""
        return self.storage_folder.alignment(self.alignment)

    @property
    def required_triples(self) -> TriplesConfig:
        """The section `triples`; a ConfigError if the configuration has none."""
        if self.triples is None:
            raise ConfigError(f"the configuration of {self.party} has no triple store: add `triples:`")
        return self.triples

    @property
    def required_kmeans(self) -> KMeansConfig:
        """The section `kmeans`; a ConfigError if the configuration has none."""
        if self.kmeans is None:
            raise ConfigError(f"the configuration of {self.party} has no K-means job: add `kmeans:`")
        return self.kmeans

    @property
    def kmeans_with_data(self) -> KMeansConfig:
        """The section `kmeans` of a party that has data; a ConfigError at the dealer, or without kmeans.data."""
        job = self.required_kmeans
        if self.party not in self.parties:
            raise ConfigError(f"{self.party} is the dealer of this run: start it with `veilmeans offline`")
        if job.data is None:
            raise ConfigError(f"the configuration of {self.party} needs kmeans.data: where its rows are")
        return job

    @property
    def declared_shape(self) -> tuple[int, int]:
        """This party's number of rows and of columns, by kmeans.rows and kmeans.features."""
        rows = self.required_kmeans.required_rows
        return rows[self.party] if isinstance(rows, dict) else rows, self.declared_features

    @property
    def declared_features(self) -> int:
        """This party's number of columns, by kmeans.features."""
        features = self.required_kmeans.features
        return features[self.party] if isinstance(features, dict) else features

    @property
    def unaligned(self) -> bool:
        """True if rows are still to be aligned: their number is not known yet."""
        return self.align is not None and self.required_kmeans.rows is None

    def swept(self) -> "dict[int, JobConfig]":
        """The trainings of a sweep by their number of clusters: runs of their own, with one triple store."""
        job = self.required_kmeans
        names = {k: f"{self.run}.k{k}" for k in job.sweep or ()}
        changes = {k: {"run": checked_name("run", name), "kmeans": job.with_clusters(k)} for k, name in names.items()}
        return {k: self.model_copy(update=change) for k, change in changes.items()}

    def sweeping(self, clusters: str | None) -> "JobConfig":
        """The same configuration for a sweep over numbers of clusters, such as "2-10"; None: as configured."""
        if clusters is None:
            return self
        job = self.required_kmeans
        try:
            numbers = TypeAdapter(Swept).validate_python(clusters)
            swept = KMeansConfig.model_validate({**job.model_dump(), "sweep": numbers, "clusters": numbers[-1]})
        except ValidationError as error:
            raise ConfigError(f"--clusters {clusters}: {first_mistake(error)}") from None
        return self.model_copy(update={"kmeans": swept})

    def online(self) -> "JobConfig":
        """The same configuration without the dealer, which takes no part in a run: its certificate is not pinned."""
        peers = {name: peer for name, peer in self.peers.items() if name in self.parties}
        return self.model_copy(update={"peers": peers})

    def offline(self) -> "JobConfig":
        """The same configuration for making the store, whose name takes the run's place in every address."""
        return self.at_capacity().model_copy(update={"run": f"{STORE_RUN}{self.required_triples.store}"})

    def at_capacity(self) -> "JobConfig":
        """The same configuration with as many rows as the triple store is for."""
        if self.triples is None or self.triples.rows is None or self.kmeans is None:
            return self
        return self.model_copy(update={"kmeans": self.kmeans.model_copy(update={"rows": self.triples.rows})})

    def aligning(self) -> "JobConfig":
        """The same configuration for aligning rows; the alignment's name takes the run's place in every address."""
        beam = self.beam.model_copy(update={} if self.shared is None else {"runner": "DirectRunner"})
        return self.online().model_copy(update={"run": f"{ALIGN_RUN}{self.alignment}", "beam": beam})

    def with_aligned_rows(self, data: Path, rows: int) -> "JobConfig":
        """The same configuration whose data are the rows that all parties have; fails if the job needs more rows."""
        job = self.required_kmeans
        if job.rows not in (None, rows):
            raise ConfigError(
                f"kmeans.rows is {job.rows:,} and {rows:,} rows are common to all parties: leave it out, or set it so"
            )
        try:
            kmeans = KMeansConfig.model_validate({**job.model_dump(), "rows": rows, "data": str(data)})
        except ValidationError as error:
            raise ConfigError(f"with {rows:,} common rows: kmeans.{first_mistake(error)}") from None
        try:
            self._check_capacity(kmeans)
        except ValueError as error:
            raise ConfigError(f"with {rows:,} common rows: {error}") from None
        align = (self.align or AlignConfig()).model_copy(update={"name": self.alignment})
        return self.model_copy(update={"kmeans": kmeans, "align": align})

    @property
    def scratch_root(self) -> str:
        """The place of states between stages: "value", "memory/<party>", or a folder."""
        state = self.beam.state
        if state == "auto":
            few_rows = self.kmeans is None or self.kmeans.rows is None or self.kmeans.total_rows <= _IN_MEMORY
            state = "memory" if few_rows and self.beam.in_one_process else "scratch"
        if state == "scratch":
            return self.scratch or str(self.storage_folder.scratch)
        return f"memory/{self.party}" if state == "memory" else state

    def with_flags(self, flags: Sequence[str]) -> "JobConfig":
        """The same configuration with Beam flags from the command line; --runner replaces the configured runner."""
        if not flags:
            return self
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        parser.add_argument("--runner", default=self.beam.runner)
        known, others = parser.parse_known_args(list(flags))
        beam = {"runner": known.runner, "options": (*self.beam.options, *others)}
        return self.model_copy(update={"beam": self.beam.model_copy(update=beam)})


def load_config(file: Path) -> JobConfig:
    """Read and check a configuration; an error names the file and the field."""
    return parse_config(read_config(file), file)


def read_config(file: Path) -> str:
    """Read the text of a configuration."""
    try:
        return file.read_text()
    except OSError as error:
        here = "" if file.is_absolute() else f"; the path is relative to {Path.cwd()}"
        raise ConfigError(f"the configuration {file} cannot be read: {error.strerror}{here}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is not YAML") from None


def parse_config(text: str, file: Path) -> JobConfig:
    """Check the text of a configuration; paths in it are relative to `file`."""
    try:
        raw = yaml.safe_load(text)
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f" in line {where.line + 1}" if where else ""
        raise ConfigError(f"{file} is not YAML{line}") from None
    except (ValueError, RecursionError) as error:  # a date that is none, lists in lists in lists
        raise ConfigError(f"{file} cannot be read as YAML ({type(error).__name__})") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{file} must be a mapping of fields, such as `veilmeans init` writes")
    try:
        return JobConfig.model_validate(map_paths(JobConfig, raw, partial(_absolute, file.resolve().parent)))
    except ValidationError as error:
        raise ConfigError(f"{file}: {first_mistake(error)}") from None


_KIND = re.compile(r"int|(literal|dict|union)\[.*|\[key\]|[A-Z]\w*Config")
"""The names of alternatives, which pydantic adds to the name of a field of a union type."""
_FIELD = re.compile(r"[a-z_]+(\.\w+)*: ")  # the beginning of a sentence that names a field below


def first_mistake(error: ValidationError) -> str:
    """The first mistake; of a field with alternatives, the mistake in the alternative that fits best."""
    mistakes = [(_field(each["loc"]), each["msg"]) for each in error.errors(include_url=False)]
    field, what = max((each for each in mistakes if each[0].startswith(mistakes[0][0])), key=lambda each: len(each[0]))
    what = what.removeprefix("Value error, ")
    below = field and _FIELD.match(what)
    return f"{field}.{what}" if below else f"{field}: {what}" if field else what


def _field(place: Sequence[int | str]) -> str:
    return ".".join(str(part) for part in place if not _KIND.fullmatch(str(part)))


def _absolute(base: Path, path: str) -> str:
    return path if "://" in path else str(base / path)
