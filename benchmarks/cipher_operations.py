"""Cost of the homomorphic engine's operations on one core, without Beam and network.

The public numbers are those of a job of 10^6 rows, k = 4, Okamoto–Uchiyama with 2048 bits; tables of powers are as wide
as the engine makes them for so many rows, and what the offline phase makes is made beforehand. Owner and peer call what
their rounds call. Seconds are of one core, the least of a few repetitions.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from benchmarks.arithmetic import seconds
from benchmarks.figures import Figure
from veilmeans.crypto import ring
from veilmeans.crypto.fixed_point import FRACTION_BITS
from veilmeans.crypto.he import scheme as he
from veilmeans.crypto.he.product_parameters import HEProductParameters, SchemeParameters
from veilmeans.crypto.he.scheme import Ciphertexts
from veilmeans.crypto.ring_matmul import sparse_matmul
from veilmeans.io.storage.he_keyring import Keyring
from veilmeans.schemas.address import Address
from veilmeans.schemas.layout import Layout
from veilmeans.schemas.party import Party
from veilmeans.transforms.offline.ciphertexts import make_ciphertexts
from veilmeans.transforms.products.engine_parameters import HEBounds
from veilmeans.transforms.rounds.he_operations import HEOperations, PowerTableCache
from veilmeans.transforms.rounds.interfaces import CiphertextNeed

JOB_ROWS, CLUSTERS, ITERATIONS, NONZEROS = 1_000_000, 4, 10, 10
CIPHER = SchemeParameters("okamoto-uchiyama", 2048)
REPEATS = 3
ADDRESS = Address("bench", 0, "distance", 0)
OWNER, PEER = (Party(i, ("owner", "peer")) for i in range(2))
PHE_ROWS = 3


@dataclass(frozen=True)
class MatrixKind:
    """A kind of sparse matrix that the owner has."""

    name: str
    columns: int
    integer_valued: bool
    rate: float
    """Target of the owner: rows in a second."""

    @property
    def product(self) -> HEProductParameters:
        """The product's parameters in a job of `JOB_ROWS`."""
        layout = Layout(True, (JOB_ROWS,) * 2, (self.columns,) * 2, 65_536)
        return HEBounds(layout, CLUSTERS, FRACTION_BITS, (self.integer_valued,) * 2, ITERATIONS).distance(0, CIPHER)

    def matrix(self, rows: int) -> csr_array:
        """Ten nonzeros in a row, each in a tenth of the columns of its own: of 20 bits, or 1."""
        rng, tenth = np.random.default_rng(1), self.columns // NONZEROS
        indices = np.arange(NONZEROS) * tenth + rng.integers(0, tenth, (rows, NONZEROS))
        low, high = (1, 2) if self.integer_valued else (1 << 19, 1 << 20)
        values = rng.integers(low, high, rows * NONZEROS, np.uint64) << ring.DTYPE(self.product.shift)
        indptr = np.arange(0, rows * NONZEROS + 1, NONZEROS)
        return csr_array((values, indices.reshape(-1), indptr), shape=(rows, self.columns))


FRACTIONS = MatrixKind("10 nonzeros of 20 bits", 100, False, 10_000)
ONE_HOT = MatrixKind("one-hot, 10 nonzeros", 10_000, True, 50_000)


def keyrings() -> tuple[Keyring, Keyring]:
    """The keys of the owner and of the peer."""
    keys = [he.generate_key(CIPHER.scheme, CIPHER.bits) for _ in range(2)]
    return Keyring(keys[0], {1: keys[1].public}, b"o" * 32), Keyring(keys[1], {0: keys[0].public}, b"p" * 32)


class DistanceStep:
    """One distance step: the owner's `rows` rows against the peer's share of the centroids."""

    def __init__(self, kind: MatrixKind, rings: tuple[Keyring, Keyring], rows: int) -> None:
        self.product, self.x, self.rings = kind.product, kind.matrix(rows), rings
        self.y = np.random.default_rng(2).integers(0, 2**64, (kind.columns, CLUSTERS), np.uint64)
        self.zeros = CiphertextNeed("y", 1, 1, kind.columns * self.product.packs, self.product, masked=False)
        count = int(np.prod(self.product.product_shape(rows)))
        self.masks = CiphertextNeed("z", 0, 1, count, self.product, masked=True)
        self.made = {
            "y": make_ciphertexts(self.zeros, rings[1], ADDRESS),
            "z": make_ciphertexts(self.masks, rings[0], ADDRESS),
        }
        self.encrypted = self.encrypt()
        tables = PowerTableCache(lambda _iteration, _peer: self.encrypted)
        self.owner, self.peer = (HEOperations(ring_, tables, 0, ADDRESS, self.made.__getitem__) for ring_ in rings)
        self.z, self.share = self.multiply()

    def encrypt(self) -> Ciphertexts:
        tables = PowerTableCache(lambda *_: self.made["y"])
        peer = HEOperations(self.rings[1], tables, 0, ADDRESS, self.made.__getitem__)
        return peer.encrypt("y", PEER, self.product, self.y)

    def multiply(self) -> tuple[Ciphertexts, ring.Ring]:
        return self.owner.multiply("z", OWNER, 1, self.product, self.x)

    def decrypt(self) -> ring.Ring:
        return self.peer.decrypt(PEER, 0, self.product, self.z, self.x.shape[0])

    def check(self) -> None:
        """Fail if the results are wrong."""
        if not np.array_equal(self.share + self.decrypt(), sparse_matmul(self.x, self.y)):
            raise ArithmeticError("the shares do not add up to the product")


def operations(rows: int) -> list[Figure]:
    """Measure owner, peer and offline phase; then the complete step against phe. `rows` divides `JOB_ROWS`."""
    rings = keyrings()
    steps = {kind: DistanceStep(kind, rings, rows) for kind in (FRACTIONS, ONE_HOT)}
    result: list[Figure] = []
    for kind, step in steps.items():
        step.check()
        speed = rows / seconds(step.multiply, REPEATS)
        result.append(Figure.at_least(f"owner's product, {kind.name}", speed, "rows/s", kind.rate))
    step = steps[FRACTIONS]
    decryptions = step.z.size / seconds(step.decrypt, REPEATS)
    masks = _rate(step.masks.count, lambda: make_ciphertexts(step.masks, rings[0], ADDRESS))
    return [
        *result,
        Figure("tables of powers, 100 columns, once an iteration", _tables(step), "s"),
        Figure.at_least("peer's decryption with unpacking", decryptions, "ciphertexts/s", 4_000),
        Figure("peer's encryption, packed", _rate(step.encrypted.size, step.encrypt), "ciphertexts/s"),
        Figure("offline: masks", masks, "/s"),
        Figure(
            "offline: blinds", _rate(step.zeros.count, lambda: make_ciphertexts(step.zeros, rings[1], ADDRESS)), "/s"
        ),
        *_against_phe(step, step.masks.count / rows / masks),
    ]


def _against_phe(step: DistanceStep, mask: float) -> list[Figure]:
    """Compare owner and peer with phe, for a row; `mask`: seconds for its masks, which phe makes in the step."""
    ours = (seconds(step.multiply, REPEATS) + seconds(step.decrypt, REPEATS)) / step.x.shape[0]
    theirs, encryption = phe_row(step)
    name, more = f"distance step, {FRACTIONS.name}, owner and peer", CLUSTERS * encryption
    return [
        Figure(name, ours * 1e6, "µs/row"),
        Figure("the same with phe, a ciphertext for each row and cluster", theirs * 1e6, "µs/row"),
        Figure.at_least("distance step: quicker than phe, masks made beforehand", theirs / ours, "×", 100),
        Figure("distance step and its masks", (ours + mask) * 1e6, "µs/row"),
        Figure("the same with phe and its masks", (theirs + more) * 1e6, "µs/row"),
        Figure.at_least("distance step and its masks: quicker than phe", (theirs + more) / (ours + mask), "×", 100),
    ]


def _rate(count: int, work: Callable[[], object]) -> float:
    return count / seconds(work, REPEATS)


def _tables(step: DistanceStep) -> float:
    """Seconds for the tables of all columns."""

    def make() -> None:
        tables = PowerTableCache(lambda _iteration, _peer: step.encrypted)
        uses = step.x.nnz * (JOB_ROWS // step.x.shape[0])
        for table in tables.tables_of(0, 1, step.rings[0].public(1), step.product, uses):
            table.compute(np.arange(step.product.terms))

    return seconds(make, 1)


def phe_row(step: DistanceStep) -> tuple[float, float]:
    """Seconds for a row, owner and peer: Σ x·Enc(y) + Enc(R) in phe's own types, then a decryption, for each cluster.

    As with ours, Enc(y) and Enc(R) were made beforehand; the other value is seconds for one Enc(R).
    """
    from phe import paillier

    public, private = paillier.generate_paillier_keypair(n_length=CIPHER.bits)
    x = step.x[:PHE_ROWS]
    values = step.y.tolist()
    encrypted = {c: [public.encrypt(y) for y in values[c]] for c in np.unique(x.indices).tolist()}
    mask = public.encrypt(0)

    def work() -> list[int]:
        products = []
        for row in range(PHE_ROWS):
            part = slice(x.indptr[row], x.indptr[row + 1])
            pairs = list(zip(x.indices[part].tolist(), x.data[part].tolist(), strict=True))
            for cluster in range(CLUSTERS):
                total = mask
                for column, value in pairs:
                    total = total + encrypted[column][cluster] * value
                products.append(private.decrypt(total) % 2**64)
        return products

    if not np.array_equal(np.array(work(), np.uint64).reshape(-1, CLUSTERS), sparse_matmul(x, step.y)):
        raise ArithmeticError("phe's products are wrong")
    return seconds(work, REPEATS) / PHE_ROWS, seconds(lambda: public.encrypt(0), REPEATS)
