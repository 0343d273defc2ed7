"""Operations on ciphertexts in a round: the steps of the paper's Protocol 2, with HE2SS.

For an owner P_i with a plain sparse matrix X and a peer P_j with a share Y, under P_j's key:

  encrypt     P_j → P_i   Enc(Y) = g^Y·h^r                     h^r was made offline; online it is one power of g
  multiply    P_i         Π_c Enc(Y_c)^x_rc for each row r      only nonzeros are touched
  accumulate  P_i         Π_r Enc(Y_r)^x_rc for each column c   the same for Xᵀ, multiplied together over all shards
  mask        P_i → P_j   product · Enc(R)                      Enc(R) = g^R·h^r' was made offline, r' longer than the
                                                                product's own randomness can be; P_i's share is −R
  decrypt     P_j         X·Y + R, whose slots mod 2^64 are P_j's share

P_j learns X·Y + R, in which R is uniform and σ bits longer, under randomness that is fresh. P_i learns ciphertexts.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from veilmeans.crypto import prg, ring
from veilmeans.crypto.he import scheme as he
from veilmeans.crypto.he.multiexp import PowerTables, choose_window, column_products, row_products
from veilmeans.crypto.he.product_parameters import HEProductParameters
from veilmeans.crypto.he.scheme import Ciphertexts, PublicKey
from veilmeans.io.storage.he_keyring import Keyring
from veilmeans.schemas.address import Address
from veilmeans.schemas.errors import RefusedError
from veilmeans.schemas.party import Party
from veilmeans.transforms.rounds.forked_work import spread
from veilmeans.transforms.rounds.interfaces import ColumnCiphertexts

if TYPE_CHECKING:
    from scipy.sparse import csr_array

_DECRYPTION = 100  # multiplications that take the time of one decryption
TABLE_BYTES = 256 << 20
"""Memory for the tables of powers of one peer's encrypted centroids."""


def draw_mask_bytes(
    seed: bytes, address: Address, label: str, product: HEProductParameters, count: int
) -> NDArray[np.uint8]:
    """Expand the random bytes of the masks R of `count` plaintexts; the same offline and online."""
    shape = (count, product.slots.count, product.slots.mask_bytes)
    return prg.uniform(seed, address, f"{label}.mask", shape, np.uint8)


@dataclass
class PowerTableCache:
    """Tables of powers of the peers' encrypted centroids: one set per iteration, shared by all shards of a worker.

    `read` reads Enc(μ) of a peer in an iteration, columns × packs.
    """

    read: Callable[[int, int], Ciphertexts]
    _tables: dict[tuple[int, int], list[PowerTables]] = field(default_factory=dict, repr=False)
    _lock: Any = field(default_factory=threading.Lock, repr=False)

    def tables_of(
        self, iteration: int, peer: int, key: PublicKey, product: HEProductParameters, nonzeros: int
    ) -> list[PowerTables]:
        """Return the tables for a peer, one for each pack; their size depends on the matrix's `nonzeros`."""
        with self._lock:
            for old in [known for known in self._tables if known[0] != iteration]:
                del self._tables[old]
            if (iteration, peer) not in self._tables:
                self._tables[iteration, peer] = _make_tables(self.read(iteration, peer), key, product, nonzeros)
            return self._tables[iteration, peer]


def _make_tables(
    encrypted: Ciphertexts, key: PublicKey, product: HEProductParameters, nonzeros: int
) -> list[PowerTables]:
    bits, packs = product.exponent_bits, product.packs
    window = choose_window(len(encrypted) * product.group, nonzeros, bits, TABLE_BYTES // packs, key.size)
    return [
        PowerTables(
            _with_shifted_copies(he.from_ciphertexts(encrypted[:, pack]), key, product), key.modulus, bits, window
        )
        for pack in range(packs)
    ]


def _with_shifted_copies(bases: list[mpz], key: PublicKey, product: HEProductParameters) -> list[mpz]:
    """Append copies of the bases whose plaintexts are shifted by one row's slots, by two rows', …"""
    step = mpz(1) << product.columns * product.slots.width
    copies = list(bases)
    for _ in range(product.group - 1):
        bases = [pow(base, step, key.modulus) for base in bases]
        copies += bases
    return copies


@dataclass(frozen=True)
class HEContext:
    """A party's keys and tables for work with ciphertexts, and the number of processes that it is spread over."""

    keyring: Keyring
    tables: PowerTableCache
    processes: int = 1


@dataclass(frozen=True)
class HEOperations:
    """`HomomorphicOperations` at one address, with real keys.

    `take_ciphertexts` reads the ciphertexts that were made offline under a label, once.
    """

    keyring: Keyring = field(repr=False)
    tables: PowerTableCache = field(repr=False)
    iteration: int
    store_address: Address
    take_ciphertexts: Callable[[str], Ciphertexts] = field(repr=False)
    processes: int = 1

    def encrypt(self, label: str, _party: Party, product: HEProductParameters, values: ring.Ring) -> Ciphertexts:
        key, zeros = self.keyring.own.public, self.take_ciphertexts(label)
        plains = product.encrypted_slots.pack(_rows_to_slots(product, values))
        return he.encrypt(key, plains, zeros).reshape(product.encrypted_shape(len(values)))

    def check(self, party: Party, peer: int, y: Ciphertexts) -> Ciphertexts:
        _read_checked(party.names[peer], self.keyring.public(peer), y)
        return y

    def multiply(
        self, label: str, _party: Party, peer: int, product: HEProductParameters, x: "csr_array"
    ) -> tuple[Ciphertexts, ring.Ring]:
        key, rows = self.keyring.public(peer), x.shape[0]
        exponents = _to_exponents(product, x)
        nonzeros = exponents.nnz * max(1, product.rows // max(1, rows))
        tables = self.tables.tables_of(self.iteration, peer, key, product, nonzeros)
        packs = [self._row_products(_group_rows(product, exponents), table, key.size) for table in tables]
        products = [value for row in zip(*packs, strict=True) for value in row]
        masked, share = self._mask_products(label, key, product, products)
        return masked.reshape(product.product_shape(rows)), _slots_to_rows(product, share, rows)

    def accumulate(
        self, party: Party, peer: int, product: HEProductParameters, x: "csr_array", y: Ciphertexts
    ) -> ColumnCiphertexts:
        key = self.keyring.public(peer)
        exponents = _to_exponents(product, x)
        packs = []
        for pack in range(product.packs):
            values = _read_checked(party.names[peer], key, y[:, pack])
            columns, products = self._column_products(exponents, values, key, product.exponent_bits)
            packs.append(he.to_ciphertexts(products, key.size))
        return ColumnCiphertexts(columns, np.stack(packs, axis=1))

    def mask(
        self, label: str, _party: Party, peer: int, product: HEProductParameters, width: int, sums: ColumnCiphertexts
    ) -> tuple[Ciphertexts, ring.Ring]:
        products = [mpz(1)] * (width * product.packs)
        values = he.from_ciphertexts(sums.ciphertexts)
        for position, column in enumerate(sums.columns.tolist()):
            packs = values[position * product.packs : (position + 1) * product.packs]
            products[column * product.packs : (column + 1) * product.packs] = packs
        masked, share = self._mask_products(label, self.keyring.public(peer), product, products)
        return masked.reshape(width, product.packs), _slots_to_rows(product, share, width)

    def decrypt(self, party: Party, peer: int, product: HEProductParameters, z: Ciphertexts, rows: int) -> ring.Ring:
        own = self.keyring.own
        ciphertexts = _read_checked(party.names[peer], own.public, z)
        try:
            values = product.slots.unpack(self._decrypted(ciphertexts))
        except ValueError:
            raise RefusedError(
                f"{party.names[peer]} sent a ciphertext whose plaintext is above the bound: one of us has another key, "
                "or it does not follow the protocol"
            ) from None
        return _slots_to_rows(product, values, rows) << ring.DTYPE(product.shift)

    def _row_products(self, matrix: "csr_array", tables: PowerTables, size: int) -> list[mpz]:
        """`row_products`, tables included, over the cores: the tables by columns, the products by rows."""
        missing, entries = tables.missing(matrix.indices), sum(tables.digit_sizes)
        weights = np.full(len(missing), entries)
        tables.store(missing, spread(lambda a, b: tables.powers(missing[a:b]), weights, size, self.processes))
        weights = np.diff(matrix.indptr).astype(np.int64) * (tables.digits or tables.bits)
        return spread(lambda a, b: row_products(matrix[a:b], tables), weights, size, self.processes)

    def _column_products(
        self, matrix: "csr_array", rows: Sequence[mpz], key: PublicKey, bits: int
    ) -> tuple[NDArray[np.int64], list[mpz]]:
        """`column_products` over the cores, by columns that are not empty."""
        by_column = matrix.tocsc()
        sizes = np.diff(by_column.indptr).astype(np.int64)
        columns = np.flatnonzero(sizes)

        def part(start: int, end: int) -> list[mpz]:
            if start == end:
                return []
            first, last = columns[start], columns[end - 1] + 1
            return column_products(by_column[:, first:last], rows, key.modulus, bits)[1]

        return columns, spread(part, sizes[columns] * -(-bits // 4), key.size, self.processes)

    def _decrypted(self, ciphertexts: Sequence[mpz]) -> list[mpz]:
        own = self.keyring.own
        weights = np.full(len(ciphertexts), _DECRYPTION)
        return spread(lambda a, b: list(map(own.decrypt, ciphertexts[a:b])), weights, own.public.size, self.processes)

    def _mask_products(
        self, label: str, key: PublicKey, product: HEProductParameters, products: Sequence[mpz]
    ) -> tuple[Ciphertexts, ring.Ring]:
        """Multiply each product by an encrypted mask; return also the negated masks mod 2^64."""
        masks, modulus = he.from_ciphertexts(self.take_ciphertexts(label)), key.modulus
        masked = [value * mask % modulus for value, mask in zip(products, masks, strict=True)]
        random = draw_mask_bytes(self.keyring.seed, self.store_address, label, product, len(masked))
        share = (ring.DTYPE(0) - product.slots.residues(random)) << ring.DTYPE(product.shift)
        return he.to_ciphertexts(masked, key.size), share


def _read_checked(peer: str, key: PublicKey, ciphertexts: Ciphertexts) -> list[mpz]:
    """Read the residues of a peer's ciphertexts, or refuse them."""
    values = he.from_ciphertexts(ciphertexts)
    try:
        he.check_ciphertexts(key, values)
    except ValueError:
        raise RefusedError(f"{peer} sent something that is not a ciphertext under the agreed key") from None
    return values


def _to_exponents(product: HEProductParameters, x: "csr_array") -> "csr_array":
    """Convert fixed-point values to the integers that stand for them: x / 2^shift."""
    from scipy.sparse import csr_array

    return csr_array((x.data.view(np.int64) >> product.shift, x.indices, x.indptr), shape=x.shape)


def _group_rows(product: HEProductParameters, x: "csr_array") -> "csr_array":
    """Join every `group` rows into one: the second row's columns follow the first's, as the shifted copies do."""
    from scipy.sparse import csr_array

    if product.group == 1:
        return x
    rows, width = x.shape
    row = np.repeat(np.arange(rows), np.diff(x.indptr))
    indices = x.indices + (row % product.group) * width
    indptr = np.append(x.indptr[:-1][:: product.group], x.indptr[-1])
    return csr_array((x.data, indices, indptr), shape=(len(indptr) - 1, width * product.group))


def _rows_to_slots(product: HEProductParameters, values: ring.Ring) -> ring.Ring:
    """Reshape rows × columns to plaintexts × slots, with zeros where the last pack is not full."""
    count = product.encrypted_slots.count
    missing = product.packs * count - product.columns
    return np.pad(values, ((0, 0), (0, missing))).reshape(-1, count)


def _slots_to_rows(product: HEProductParameters, slots: ring.Ring, rows: int) -> ring.Ring:
    """Reshape plaintexts × slots to rows × columns."""
    per_row = product.packs * product.slots.count // product.group
    return slots.reshape(-1, per_row)[:rows, : product.columns]
