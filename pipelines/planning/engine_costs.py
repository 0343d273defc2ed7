"""What operations cost on this machine, and what a cross product costs with each engine, from public numbers alone.

For an owner of n rows × d columns with z nonzeros a row and each of its peers, in one iteration:

  product   right operand   result          beaver                                   he
  distance  Y (d × k)       X·Y (n × k)     d·k words a shard, n·d·k multiply-adds   d ciphertexts there, n/group back
  update    C (n × k − 1)   Xᵀ·C (d × k − 1) n·(k−1) words, n·d·(k−1) multiply-adds  n ciphertexts there, d back

(times `packs` where the values of one row need several). Besides, beaver moves the masked X once: n·d words, which both
products share. Owner, peer and link work one after the other in a round, so a product takes

  owner's seconds + peer's seconds + bytes / rate + rounds · round trip.

Everything is the same at every party that starts from the same numbers: parties agree on them (`slowest`) and choose
for themselves.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from math import ceil, inf
from typing import Any

from veilmeans.crypto.he.multiexp import column_multiplications, row_multiplications
from veilmeans.crypto.he.product_parameters import HEProductParameters
from veilmeans.pipelines.planning.units import short
from veilmeans.schemas.config import LinkShape
from veilmeans.transforms.rounds.he_operations import TABLE_BYTES

_SQUARE = 0.7
"""A squaring inside a power, in multiplications of our own loops."""
_WORD = 8


@dataclass(frozen=True)
class Link:
    """Bytes per second between two parties, and the seconds of a round trip."""

    rate: float = 125e6
    round_trip: float = 0.0005

    @classmethod
    def shaped(cls, shape: LinkShape | None) -> "Link":
        """The link that a configuration describes; 1 Gbit/s and 0.5 ms where it says nothing."""
        return cls() if shape is None else cls(shape.rate_mbps * 125e3, shape.round_trip_ms / 1e3)


@dataclass(frozen=True)
class Costs:
    """Seconds of one operation, Python's share included; and the link."""

    multiply: float
    """A product of two residues, as in a row's product."""
    raw: float
    """A value of Y in a packed plaintext that is encrypted under a blind made beforehand."""
    blind: float
    """A blind for a fresh ciphertext."""
    mask: float
    """The mask of a product as a fresh ciphertext: blind, plaintext and their product."""
    decrypt: float
    """A ciphertext decrypted, and its plaintext unpacked."""
    convert: float
    """A residue from bytes or to bytes."""
    dense: float
    """A multiply-add mod 2^64 of a dense product."""
    sparse: float
    """A nonzero times one column in a local product."""
    word: float
    """A word of 8 bytes expanded or moved."""
    rate: float
    """Bytes per second of the link."""
    round_trip: float

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if type(value) not in (int, float) or not 0 <= value < inf or (not value and name != "round_trip"):
                raise ValueError(f"the cost {name} is no number above zero")

    def to_json(self) -> dict[str, float]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Costs":
        """The inverse of `to_json`. What cannot be costs is refused with ValueError."""
        if not isinstance(content, Mapping) or set(content) != {field.name for field in fields(cls)}:
            raise ValueError("costs have other fields")
        return cls(**content)


def slowest(several: Iterable[Costs]) -> Costs:
    """The largest of each cost and the lowest rate: what parties agree on when each announces its own."""
    announced = [costs.to_json() for costs in several]
    together = {name: max(each[name] for each in announced) for name in announced[0]}
    return Costs(**{**together, "rate": min(each["rate"] for each in announced)})


@dataclass(frozen=True)
class Owner:
    """The public numbers of one owner's matrix, and the products under encryption that it would take part in.

    `update`: None where rows are only assigned. `nonzeros`: of a row, on average; None where nothing is known of them,
    and all values are taken for nonzeros.
    """

    rows: int
    columns: int
    distance: HEProductParameters
    update: HEProductParameters | None
    nonzeros: float | None = None

    @property
    def uses(self) -> float:
        """Nonzeros of the whole matrix."""
        return self.rows * min(self.columns, self.columns if self.nonzeros is None else self.nonzeros)


@dataclass(frozen=True)
class Estimate:
    """Of one engine for one owner's product with all its peers, in an iteration. `parts`: what takes how many seconds.

    `offline_bytes` are those kept for it from the offline phase to the run.
    """

    engine: str
    parts: tuple[tuple[str, float], ...] = ()
    bytes: int = 0
    offline_seconds: float = 0.0
    offline_bytes: int = 0

    @property
    def seconds(self) -> float:
        return sum(seconds for _, seconds in self.parts)

    @property
    def why(self) -> str:
        """What takes most of the time."""
        if not self.parts:
            return "nothing to do"
        what, seconds = max(self.parts, key=lambda part: part[1])
        return f"{what}: {short(seconds)} s"


Estimates = dict[str, dict[str, Estimate]]
"""Product -> engine -> estimate; "operand" is what beaver's products share, its part of one iteration."""


def estimate(
    owner: Owner, k: int, parties: int, iterations: int, costs: Costs, rows_per_shard: int = 65_536
) -> Estimates:
    """What each engine would cost, in an iteration."""
    job = _Job(owner, k, parties - 1, iterations, costs, ceil(owner.rows / rows_per_shard))
    if not owner.rows or not owner.columns:
        nothing = {engine: Estimate(engine) for engine in ("beaver", "he")}
        return {"operand": {"beaver": nothing["beaver"]}, "distance": nothing, "update": nothing}
    if k == 1 or owner.update is None:
        update = {engine: Estimate(engine) for engine in ("beaver", "he")}
    else:
        update = {"beaver": _beaver_update(job), "he": _he_update(job, owner.update)}
    return {
        "operand": {"beaver": _operand(job)},
        "distance": {"beaver": _beaver_distance(job), "he": _he_distance(job)},
        "update": update,
    }


@dataclass(frozen=True)
class _Job:
    owner: Owner
    k: int
    peers: int
    iterations: int
    costs: Costs
    shards: int

    @property
    def cells(self) -> int:
        return self.owner.rows * self.owner.columns

    def link(self, size: float, rounds: float) -> tuple[tuple[str, float], ...]:
        moved = f"{short(size / 1e6)} MB over the link"
        return (moved, size / self.costs.rate), ("round trips", rounds * self.costs.round_trip)


def _operand(job: _Job) -> Estimate:
    """X − U to each peer, once."""
    size = job.cells * _WORD * job.peers
    once = (
        (f"{job.cells:,} words masked, once", (job.peers + 2) * job.cells * job.costs.word),
        (f"{short(size / 1e9)} GB of masked values over the link, once", size / job.costs.rate),
        ("round trips", job.costs.round_trip),
    )
    parts = tuple((what, seconds / job.iterations) for what, seconds in once)
    return Estimate("beaver", parts, ceil(size / job.iterations))


def _beaver_distance(job: _Job) -> Estimate:
    """Four columns of Y at a time; those that are left over take half as long again."""
    owner, k = job.owner, job.k
    return _beaver(job, k + k % 4 / 2, job.shards * owner.columns * k, owner.rows * k, 0)


def _beaver_update(job: _Job) -> Estimate:
    """Row by row of X and C: besides the multiply-adds, each value of X is taken up once."""
    owner, columns = job.owner, job.k - 1
    return _beaver(job, columns, owner.rows * columns, job.shards * owner.columns * columns, job.cells)


def _beaver(job: _Job, columns: float, right: int, result: int, read: int) -> Estimate:
    """⟨Y⟩ − V to the owner, and a dense product at either side; `right` and `result` words in all shards."""
    costs, peers = job.costs, job.peers
    product = job.cells * columns * costs.dense + (read + result) * costs.word
    masks = (3 + peers) * right + (2 + peers) * result
    size = peers * right * _WORD
    parts = (
        (f"dense products of {job.cells * columns:,.0f} multiply-adds", 2 * product),
        (f"{masks:,} words of masks", masks * costs.word),
        *job.link(size, 1),
    )
    dealer = peers * (product + (job.cells + right + result) * costs.word)
    return Estimate("beaver", parts, size, dealer, peers * result * _WORD)


def _he_distance(job: _Job) -> Estimate:
    """A row's product takes its nonzeros; copies of Y's rows, shifted to another row's slots, take squarings."""
    owner, product = job.owner, job.owner.distance
    cipher, copies = product.cipher, owner.columns * (product.group - 1)
    bases, rows = owner.columns * product.group, ceil(owner.rows / product.group)
    multiplications = product.packs * row_multiplications(
        bases, owner.uses, rows, product.exponent_bits, TABLE_BYTES // product.packs, cipher.size
    )
    multiplications += copies * product.encrypted_slots.bits * _SQUARE
    return _he(job, product, owner.columns, owner.rows, multiplications)


def _he_update(job: _Job, product: HEProductParameters) -> Estimate:
    """Each shard makes products over its rows, which are multiplied over the shards."""
    owner = job.owner
    uses = owner.uses / job.shards
    shard = column_multiplications(owner.columns, uses, product.exponent_bits) + min(float(owner.columns), uses)
    return _he(job, product, owner.rows, owner.columns, product.packs * job.shards * shard)


def _he(job: _Job, product: HEProductParameters, encrypted: int, results: int, multiplications: float) -> Estimate:
    """Enc(Y) to the owner, and the masked product back; `encrypted` rows of Y, `results` rows of the product."""
    costs, peers, (rows, packs) = job.costs, job.peers, product.product_shape(results)
    there, back, values = encrypted * product.packs, rows * packs, results * product.columns
    made = encrypted * product.columns * costs.raw + there * (costs.multiply + 2 * costs.convert)
    taken = there * (costs.convert + costs.multiply) + multiplications * costs.multiply
    masked = back * (costs.multiply + 2 * costs.convert) + values * costs.word
    size = peers * (there + back) * product.cipher.size
    parts = (
        (f"{there:,} ciphertexts made", made),
        (f"{multiplications:,.0f} multiplications for {job.owner.uses:,.0f} nonzeros", peers * taken),
        (f"{back:,} ciphertexts masked", peers * masked),
        (f"{back:,} ciphertexts decrypted", back * costs.decrypt),
        ("local products", job.owner.uses * product.columns * costs.sparse),
        *job.link(size, 2),
    )
    offline = peers * (there * costs.blind + back * costs.mask)
    return Estimate("he", parts, size, offline, size)
