"""Cost model of a cross product with each engine, from public numbers and the seconds of a few operations.

For an owner of n rows × d columns with z nonzeros a row and each of its peers, in one iteration:

  product   right operand   result          beaver                                   he
  distance  Y (d × k)       X·Y (n × k)     d·k words a shard, n·d·k multiply-adds   d ciphertexts there, n/group back
  update    C (n × k − 1)   Xᵀ·C (d × k − 1) n·(k−1) words, n·d·(k−1) multiply-adds  n ciphertexts there, d back

(times `packs` where the values of one row need several). Besides, beaver sends the masked X once: n·d words, which both
products share. Owner, peer and link work one after the other in a round, so a product takes

  owner's seconds + peer's seconds + bytes / rate + rounds · round trip / 2.

A dealer's work counts as nothing. Without a dealer the offline phase counts, divided by the iterations: for beaver
Enc(U) of each product (27 bytes a word of X, once a run) and the responses of its lattice products, for he the blinds
of its ciphertexts.

All parties start from the same numbers (the slowest of what each announces), so all select the same engines.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from math import ceil, inf
from typing import Any

from veilmeans.crypto.he.multiexp import column_multiplications, row_multiplications
from veilmeans.crypto.he.product_parameters import HEProductParameters
from veilmeans.crypto.lattice.product_shape import ProductShape
from veilmeans.transforms.rounds.he_operations import TABLE_BYTES

_SQUARE = 0.7  # cost of a squaring inside a power, in multiplications
_WORD = 8
_ENCRYPTION_SECONDS, _RESPONSE_SECONDS, _LATTICE_PRODUCT_SECONDS = 1e-3, 3e-3, 5e-5
"""Lattice products on one core (`benchmarks.lattice`): a polynomial of Enc(U); a column of V, each product in it."""


@dataclass(frozen=True)
class OperationCosts:
    """Seconds of one operation, Python's overhead included; and the link's rate and round trip."""

    multiplication: float  # a product of two residues, as in a row's product
    packed_value: float  # a value of Y in a packed plaintext that is encrypted under a blind made beforehand
    decryption: float  # a ciphertext decrypted, and its plaintext unpacked
    conversion: float  # a residue from bytes or to bytes
    blinding: float  # an encryption of zero, made beforehand
    dense_multiply_add: float  # a multiply-add mod 2^64 of a dense product
    sparse_multiply_add: float  # a nonzero times one column in a local product
    word: float  # a word of 8 bytes expanded or moved
    rate: float  # bytes per second of the link
    round_trip: float  # seconds of the link's round trip

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if type(value) not in (int, float) or not 0 <= value < inf or (not value and name != "round_trip"):
                raise ValueError(f"the cost {name} is not a number above zero")

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "OperationCosts":
        """Read costs that `asdict` converted. Raise ValueError if the content is anything else."""
        if not isinstance(content, Mapping) or set(content) != {field.name for field in fields(cls)}:
            raise ValueError("costs have other fields")
        return cls(**content)

    @classmethod
    def slowest(cls, announced: Iterable["OperationCosts"]) -> "OperationCosts":
        """The largest of each cost and the lowest rate: what parties agree on when each announces its own."""
        several = [asdict(costs) for costs in announced]
        largest = {name: max(each[name] for each in several) for name in several[0]}
        return cls(**{**largest, "rate": min(each["rate"] for each in several)})


@dataclass(frozen=True)
class OwnedMatrix:
    """The public numbers of one owner's matrix, and the homomorphic products that it would take part in.

    `update`: None where rows are only assigned. `nonzeros`: of a row, on average; None where nothing is known, and then
    all values count as nonzeros.
    """

    rows: int
    columns: int
    distance: HEProductParameters
    update: HEProductParameters | None
    nonzeros: float | None = None

    @property
    def total_nonzeros(self) -> float:
        return self.rows * min(self.columns, self.columns if self.nonzeros is None else self.nonzeros)


@dataclass(frozen=True)
class CostEstimate:
    """The cost of one owner's product with all its peers by one engine, in an iteration.

    `offline_bytes`: what is stored for it from the offline phase to the run. Without a dealer, `offline_seconds`: an
    iteration's share of making it, and `offline_sent`: of the bytes sent for it.
    """

    seconds: float = 0.0
    bytes: int = 0
    offline_bytes: int = 0
    offline_seconds: float = 0.0
    offline_sent: int = 0

    @property
    def total_seconds(self) -> float:
        return self.seconds + self.offline_seconds


CostEstimates = dict[str, dict[str, CostEstimate]]
"""Product -> engine -> estimate; "operand" is the masked X that beaver's products share, divided by the iterations."""


def estimate_costs(
    matrix: OwnedMatrix,
    k: int,
    parties: int,
    iterations: int,
    costs: OperationCosts,
    rows_per_shard: int = 65_536,
    dealt: bool = True,
) -> CostEstimates:
    """Estimate each product's cost in an iteration with each engine. `dealt`: a dealer makes the triples."""
    nothing = {engine: CostEstimate() for engine in ("beaver", "he")}
    if not matrix.rows or not matrix.columns:
        return {"operand": {"beaver": CostEstimate()}, "distance": nothing, "update": nothing}
    products = _Products(matrix, k, parties - 1, iterations, costs, rows_per_shard, dealt)
    estimates = {
        "operand": {"beaver": products.operand()},
        "distance": {"beaver": products.beaver_distance(), "he": products.he_distance()},
        "update": nothing,
    }
    if k > 1 and matrix.update is not None:
        estimates["update"] = {"beaver": products.beaver_update(), "he": products.he_update(matrix.update)}
    return estimates


@dataclass(frozen=True)
class _Products:
    """The products of one owner's matrix in an iteration, over row shards."""

    matrix: OwnedMatrix
    k: int
    peers: int
    iterations: int
    costs: OperationCosts
    rows_per_shard: int
    dealt: bool

    @property
    def shards(self) -> int:
        return ceil(self.matrix.rows / self.rows_per_shard)

    @property
    def values(self) -> int:
        return self.matrix.rows * self.matrix.columns

    def operand(self) -> CostEstimate:
        """X − U to each peer, once in a run."""
        size = self.values * _WORD * self.peers
        masking = (self.peers + 2) * self.values * self.costs.word
        seconds = sum(each / self.iterations for each in (masking, *self._link(size, 1)))
        return CostEstimate(seconds, ceil(size / self.iterations))

    def beaver_distance(self) -> CostEstimate:
        """Four columns of Y at a time; the remaining ones take half as long again."""
        columns, k = self.matrix.columns, self.k
        online = self._beaver(k + k % 4 / 2, self.shards * columns * k, self.matrix.rows * k, 0)
        return self._with_lattice(online, k, transposed=False)

    def beaver_update(self) -> CostEstimate:
        """Row by row of X and C: besides the multiply-adds, each value of X is read once."""
        columns, rows = self.k - 1, self.matrix.rows
        online = self._beaver(columns, rows * columns, self.shards * self.matrix.columns * columns, self.values)
        return self._with_lattice(online, columns, transposed=True)

    def _beaver(self, columns: float, right: int, result: int, read: int) -> CostEstimate:
        """⟨Y⟩ − V to the owner, and a dense product at either side; `right` and `result` words in all shards."""
        costs, peers = self.costs, self.peers
        product = self.values * columns * costs.dense_multiply_add + (read + result) * costs.word
        masks = (3 + peers) * right + (2 + peers) * result
        size = peers * right * _WORD
        seconds = sum((2 * product, masks * costs.word, *self._link(size, 1)))
        return CostEstimate(seconds, size, peers * result * _WORD)

    def _with_lattice(self, online: CostEstimate, outputs: int, transposed: bool) -> CostEstimate:
        """Add the lattice products that make the triples without a dealer."""
        if self.dealt:
            return online
        shape = ProductShape(min(self.matrix.rows, self.rows_per_shard), self.matrix.columns, outputs, transposed)
        polynomials, products = shape.secrets * (shape.masks + 1), shape.secrets * shape.masks
        made = polynomials * _ENCRYPTION_SECONDS / self.iterations
        answered = outputs * (_RESPONSE_SECONDS + products * _LATTICE_PRODUCT_SECONDS)
        times = self.peers * self.matrix.rows / shape.rows
        sent = times * (shape.operand_bytes / self.iterations + shape.response_bytes)
        seconds = times * (made + answered) + sent / self.costs.rate
        return replace(online, offline_seconds=seconds, offline_sent=ceil(sent))

    def he_distance(self) -> CostEstimate:
        """A row's product takes its nonzeros; copies of Y's rows, shifted to another row's slots, take squarings."""
        matrix, product = self.matrix, self.matrix.distance
        copies, bases = matrix.columns * (product.group - 1), matrix.columns * product.group
        rows, table = ceil(matrix.rows / product.group), TABLE_BYTES // product.packs
        multiplications = product.packs * row_multiplications(
            bases, matrix.total_nonzeros, rows, product.exponent_bits, table, product.cipher.size
        )
        multiplications += copies * product.encrypted_slots.bits * _SQUARE
        return self._he(product, matrix.columns, matrix.rows, multiplications)

    def he_update(self, product: HEProductParameters) -> CostEstimate:
        """Each shard makes products over its rows, which are multiplied over the shards."""
        columns, nonzeros = self.matrix.columns, self.matrix.total_nonzeros / self.shards
        shard = column_multiplications(columns, nonzeros, product.exponent_bits) + min(float(columns), nonzeros)
        return self._he(product, self.matrix.rows, columns, product.packs * self.shards * shard)

    def _he(self, product: HEProductParameters, encrypted: int, results: int, multiplications: float) -> CostEstimate:
        """Enc(Y) to the owner, and the masked product back; `encrypted` rows of Y, `results` rows of the product."""
        costs, peers, (rows, packs) = self.costs, self.peers, product.product_shape(results)
        there, back, values = encrypted * product.packs, rows * packs, results * product.columns
        rewritten = costs.multiplication + 2 * costs.conversion
        made = encrypted * product.columns * costs.packed_value + there * rewritten
        multiplied = there * (costs.conversion + costs.multiplication) + multiplications * costs.multiplication
        masked = back * rewritten + values * costs.word
        local = self.matrix.total_nonzeros * product.columns * costs.sparse_multiply_add
        size = peers * (there + back) * product.cipher.size
        seconds = sum((made, peers * multiplied, peers * masked, back * costs.decryption, local, *self._link(size, 2)))
        blinds = 0.0 if self.dealt else peers * (there + back) * costs.blinding
        return CostEstimate(seconds, size, size, blinds)

    def _link(self, size: float, rounds: int) -> tuple[float, float]:
        return size / self.costs.rate, rounds * self.costs.round_trip / 2
