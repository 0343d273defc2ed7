"""The names of all files and folders below a party's `storage`, each spelled here and nowhere else.

  storage/
    runs/RUN/         RunFolder      what one run keeps: agreements, checkpoints, results, the report
    triples/STORE/    StoreFolder    a triple store: correlations, keys, and the claims of runs
    aligned/NAME/     AlignmentFolder  this party's rows in the order that all parties agreed on
    prepared/         PreparedData   encoded shards of this party's data
    inbox/                           messages of peers, by run (`schemas.message.MessageKey.path`)
    scratch/                         states of shards between stages (`beam.state: scratch`)
  storage.ledger/     LedgerFolder   the claims of triple stores once more, outside what is backed up with them

No file is read or written here; what the numbered files are is found by their names.
"""

from dataclasses import dataclass
from pathlib import Path

ASSIGNMENTS = "assignments"  # shares of the one-hot rows, as an iteration assigned them; by iteration and row shard
CENTROIDS = "centroids"  # shares of the centroids; by iteration and column shard
ENCRYPTED = "encrypted"  # the peers' encrypted centroids; by iteration and column shard
OPERANDS = "operands"  # the peers' masked matrices; by row shard
CHOSEN = "chosen"  # shares of the best start's centroids, where there were several starts; by column shard
SEEDS = "seeds"  # shares of the centroids that k-means++ has chosen; by their number and column shard
SEED_WEIGHTS = "seed-weights"  # shares of the rows' weights in k-means++; by the number of centroids and row shard
OPENED = "opened"  # each row's cluster, opened to this party; by row shard
OPENED_SCORES = "opened-scores"  # scores and outliers, opened to this party; by row shard
EXPLAINED_CENTROIDS = "explained-centroids"  # shares of the centroids that have outliers; by column shard
OPENED_EXPLANATIONS = "opened-explanations"  # outliers' clusters and scores, opened to this party; by row shard
PROFILE = "profile"  # shares of the final clusters' sizes and sums; as shard 0
OPEN_CLUSTERS = "open-clusters"  # shares of the bits that say which centroids may be opened; as shard 0
OPEN_CENTROIDS = "open-centroids"  # shares of the centroids, 0 of those that stay closed; by column shard
SCORES = "scores"  # shares of the rows' scores, outliers and outliers' clusters; by iteration and row shard


@dataclass(frozen=True)
class Folder:
    """A folder whose files have names. Usable where the standard library takes a path."""

    path: Path

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True)
class _Name:
    """The name of a file or folder: an attribute of a folder that gives its path."""

    name: str

    def __get__(self, folder: Folder, kind: type[Folder]) -> Path:
        return folder.path / self.name


class StorageFolder(Folder):
    """A party's `storage`."""

    def run(self, name: str) -> "RunFolder":
        """The folder of the run `name`."""
        return RunFolder(self.path / "runs" / name)

    stores = _Name("triples")  # the folder of all triple stores

    def store(self, name: str) -> "StoreFolder":
        """The folder of the triple store `name`."""
        return StoreFolder(self.stores / name)

    def alignment(self, name: str) -> "AlignmentFolder":
        """The folder of the alignment `name`."""
        return AlignmentFolder(self.path / "aligned" / name)

    @property
    def prepared(self) -> "PreparedData":
        """Encoded shards of this party's data."""
        return PreparedData(self.path / "prepared")

    inbox = _Name("inbox")  # the folder in which the gateway stores the peers' messages
    scratch = _Name("scratch")  # the folder in which states wait between stages, unless `scratch` names another
    link_clock = _Name("link.clock")  # the clock that this party's processes share to slow a link (`exchange.shape`)

    def measured_costs(self, scheme: str, bits: int) -> Path:
        """The costs of homomorphic operations, as measured on this machine."""
        return self.path / f"costs-{scheme}-{bits}.json"


class RunFolder(Folder):
    """The folder of what one party keeps of one run."""

    @property
    def run(self) -> str:
        """The run's name."""
        return self.path.name

    def terms(self, sender: str, recipient: str) -> Path:
        """The terms that `sender` sent to `recipient` at the handshake: the run is bound to them."""
        return self.path / f"bound.{sender}-to-{recipient}.json"

    joint_scaling = _Name("scale.json")  # the opened statistics of all parties' rows (`normalise.aggregate`)
    checkpoints = _Name("checkpoints")  # the folder of all checkpoints

    def checkpoint(self, iterations: int) -> Path:
        """The checkpoint after so many iterations."""
        return self.checkpoints / f"{iterations}.arrow"

    def shares(self, kind: str) -> Path:
        """The folder of one kind of kept arrays: OPERANDS, OPENED, or another kind and an iteration ("centroids/7")."""
        return self.path / kind

    def shard(self, kind: str, number: int) -> Path:
        """The arrays of one kind of one row or column shard."""
        return self.shares(kind) / f"{number}.arrow"

    dropped = _Name("collected")  # the iteration before which the messages of this run were dropped from the inbox
    finished = _Name("finished.json")  # the facts about a run after its iterations, for a later prediction or opening
    assignments = _Name("assignments.parquet")  # each row's cluster, if it was opened to this party
    scores = _Name("scores.parquet")  # each row's squared distance to its centroid, if it was opened to this party
    outliers = _Name("outliers.parquet")  # the outliers, if they were opened to this party
    explanations = _Name("explanations.parquet")  # the columns' parts of outliers' scores, if they were opened
    profiles = _Name("profiles.parquet")  # sizes, means and spreads of the final clusters, if they were opened
    centroids = _Name("centroids.parquet")  # the centroids in original units, if they were opened to this party
    result = _Name("result.json")  # the results that were opened to this party: numbers, and the names of files
    sweep = _Name("sweep.json")  # of a sweep: its trainings, and what was opened of them to this party
    sweep_page = _Name("sweep.html")  # the same as a page, with a plot of the inertias
    check = _Name("check.json")  # of a triple store's check: the numbers that were free when it began
    report = _Name("report.json")  # the run's costs and its history
    html_report = _Name("report.html")  # the report as a page

    def policy(self, opening: str, party: str) -> Path:
        """A party's signature under the policy of an opening."""
        return self.path / "policies" / f"{opening}.{party}.json"

    transcripts = _Name("transcript")  # the folder of transcripts: of the run, and of later openings

    def transcript(self, opening: str = "") -> Path:
        """The folder of the transcript of the run, or of a later opening."""
        return self.transcripts / (opening or "run")

    revocations = _Name("revocations")  # how often the tokens of this run's workers were revoked
    farewell = _Name("farewell")  # a mark: every party has what it needs, so nobody has to send again
    dealer_seed = _Name("dealer.seed")  # the seed of the dealer's randomness for a triple store (0600), at the dealer


class StoreFolder(Folder):
    """One party's part of a triple store."""

    manifest = _Name("manifest.json")  # the store's parameters; written last: a store without it is not complete
    seed = _Name("seed")  # while the store is made: the seed of the numbers' seeds (0600); then it is deleted
    file_key = _Name("files.key")  # the key that authenticates the store's files (0600)
    number_seeds = _Name("seeds")  # the folder of the numbers' seeds

    def number_seed(self, number: int) -> Path:
        """The seed from which this party expands its shares for the run with this number (0600)."""
        return self.number_seeds / str(number)

    def mask_seed(self, number: int) -> Path:
        """The seed of the masks of ciphertexts, and of their randomness, for the run with this number (0600)."""
        return self.number_seeds / f"{number}.ciphers"

    claims = _Name("claims")  # the folder of claims: which run has used which number of the store

    def claim(self, number: int) -> Path:
        """The claim of one number by one run."""
        return self.claims / f"{number}.json"

    def claim_numbers(self) -> list[int]:
        """All numbers that were claimed, ascending."""
        return _numbers(self.claims, ".json")

    def unfinished_claim(self, number: int, run: str) -> Path:
        """A claim while it is written."""
        return self.claims / f"{number}.{run}.part"

    all_corrections = _Name("corrections")  # the folder of the dealer's corrections

    def corrections(self, number: int, iteration: int, shard: int) -> Path:
        """The dealer's corrections for one shard of one iteration of the run with this number."""
        return self.all_corrections / str(number) / str(iteration) / f"{shard}.arrow"

    all_ciphertexts = _Name("ciphers")  # the folder of ciphertexts that were made beforehand

    def ciphertexts(self, number: int, iteration: int, shard: int) -> Path:
        """The ciphertexts made beforehand for one shard of one iteration of the run with this number."""
        return self.all_ciphertexts / str(number) / str(iteration) / f"{shard}.arrow"

    he_key = _Name("cipher.key")  # this party's homomorphic key pair (0600)

    def peer_key(self, peer: str) -> Path:
        """A peer's public homomorphic key, as it was sent when the store was made."""
        return self.path / f"cipher.{peer}.pub"

    @property
    def making(self) -> "MakingFolder":
        """The files that a party keeps while the parties make the store themselves."""
        return MakingFolder(self.path / "making")


class LedgerFolder(Folder):
    """A party's ledgers, outside `storage` (`triples.ledger`)."""

    def store(self, name: str, identity: str) -> Path:
        """The folder of the claims of one triple store; `identity` distinguishes it from another with its name."""
        return self.path / "stores" / f"{name}-{identity}"

    all_openings = _Name("openings")  # the folder of what was opened, by data

    def openings(self, data: str) -> Path:
        """The folder of what was opened of the data with one digest."""
        return self.all_openings / data


class MakingFolder(Folder):
    """A party's secrets while a store is made without a dealer; deleted when the store is complete."""

    secret = _Name("secret")  # the seed of this party's secrets, and its contribution to the session's nonce (0600)
    setup = _Name("setup.arrow")  # the nonce and the base OTs' keys; written when the set-up is complete
    all_base = _Name("base")  # the folder of base COTs, until the pass that uses them has ended

    def base(self, number: int, iteration: int, shard: int) -> Path:
        """The base COTs of one place, in both directions."""
        return self.all_base / str(number) / str(iteration) / f"{shard}.arrow"

    def ots(self, number: int, iteration: int, shard: int) -> Path:
        """The random OTs of one place, until it is in the store."""
        return self.path / "ots" / str(number) / str(iteration) / f"{shard}.arrow"

    def ended(self, number: int) -> Path:
        """A mark: pass `number` over all places has ended, and the peers have its messages."""
        return self.path / f"pass-{number}.ended"


class AlignmentFolder(Folder):
    """This party's rows whose ids all parties have, and what it keeps while they are found."""

    manifest = _Name("manifest.json")  # number of rows, file and digest of the order; written last
    making = _Name("making")  # the folder of what is needed until the rows are aligned; then it is deleted

    def data(self, ending: str) -> Path:
        """The rows in the agreed order, with all their columns."""
        return self.path / f"rows{ending}"

    @property
    def secret(self) -> Path:
        """The seed of this party's secrets, and its contribution to the session's nonce (0600)."""
        return self.making / "secret"

    @property
    def setup(self) -> Path:
        """The nonce and this party's part of the base OTs; written when the set-up is complete."""
        return self.making / "setup.arrow"

    @property
    def ids(self) -> Path:
        """The folder of hashed ids, by parts of their hash, as they were read."""
        return self.making / "ids"

    @property
    def shards(self) -> Path:
        """The folder of ids hashed under the job's key, by shard."""
        return self.making / "shards"

    def shard(self, kind: str, shard: int) -> Path:
        """The arrays that are kept of a shard, by their kind: "base", "vole", "outputs" or "order"."""
        return self.making / kind / f"{shard}.arrow"

    def ended(self, number: int) -> Path:
        """A mark: pass `number` over all shards has ended, and the peers have its messages."""
        return self.making / f"pass-{number}.ended"


class PreparedData(Folder):
    """The folder of a party's encoded data, by digests of what they depend on."""

    def encoded(self, digest: str) -> "EncodedFolder":
        """One source, normalised and encoded in one way."""
        return EncodedFolder(self.path / f"prepared-{digest}")


class EncodedFolder(Folder):
    """Encoded shards of one source."""

    manifest = _Name("manifest.json")  # the number of rows and columns; written last, as a store's manifest

    def rows(self, shard: int) -> Path:
        """The values of one row shard."""
        return self.path / f"{shard:06d}.rows.arrow"

    def ids(self, shard: int) -> Path:
        """The ids of one row shard's rows."""
        return self.path / f"{shard:06d}.ids.arrow"

    def labels(self, shard: int) -> Path:
        """The labels of one row shard's rows."""
        return self.path / f"{shard:06d}.labels.arrow"


def _numbers(folder: Path, suffix: str) -> list[int]:
    """The numbers of the files that are named by one; files with other names are ignored."""
    names = [file.stem for file in folder.glob(f"*{suffix}")]
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())
