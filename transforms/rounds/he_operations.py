"""What a round may do with ciphertexts: the four steps of the paper's Protocol 2, with HE2SS in them.

For an owner P_i with a plain sparse matrix X and a peer P_j with a share Y, under P_j's key:

  encrypt     P_j → P_i   Enc(Y) = g^Y·h^r                     h^r was made offline; only a power of g is left to do
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
from typing import Any

import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray
from scipy.sparse import csr_array

from veilmeans.crypto import prg, ring
from veilmeans.crypto.he import scheme as he
from veilmeans.crypto.he.multiexp import PowerTables, choose_window, column_products, row_products
from veilmeans.crypto.he.product_parameters import HEProductParameters
from veilmeans.crypto.he.scheme import Ciphers, PublicKey
from veilmeans.io.storage.he_keyring import Keyring
from veilmeans.schemas.address import Address
from veilmeans.schemas.errors import RefusedError
from veilmeans.schemas.party import Party
from veilmeans.transforms.rounds.interfaces import ColumnCiphertexts

TABLE_BYTES = 256 << 20
"""Memory for the tables of powers of one peer's encrypted centroids."""


def mask_bytes(
    seed: bytes, address: Address, label: str, product: HEProductParameters, count: int
) -> NDArray[np.uint8]:
    shape = (count, product.slots.count, product.slots.mask_bytes)
    return prg.uniform(seed, address, f"{label}.mask", shape, np.uint8)


@dataclass
class Tables:
    """Tables of powers of the peers' encrypted centroids: made once in an iteration, shared by all shards of a worker.

    `read` fetches Enc(μ) of a peer in an iteration, columns × packs.
    """

    read: Callable[[int, int], Ciphers]
    _made: dict[tuple[int, int], list[PowerTables]] = field(default_factory=dict, repr=False)
    _lock: Any = field(default_factory=threading.Lock, repr=False)

    def of(
        self, iteration: int, peer: int, key: PublicKey, product: HEProductParameters, uses: int
    ) -> list[PowerTables]:
        """One for each pack."""
        with self._lock:
            for old in [known for known in self._made if known[0] != iteration]:
                del self._made[old]
            if (iteration, peer) not in self._made:
                self._made[iteration, peer] = _make_tables(self.read(iteration, peer), key, product, uses)
            return self._made[iteration, peer]


def _make_tables(encrypted: Ciphers, key: PublicKey, product: HEProductParameters, uses: int) -> list[PowerTables]:
    bits, packs = product.exponent_bits, product.packs
    window = choose_window(len(encrypted) * product.group, uses, bits, TABLE_BYTES // packs, key.size)
    return [
        PowerTables(_shifted(he.from_ciphers(encrypted[:, pack]), key, product), key.modulus, bits, window)
        for pack in range(packs)
    ]


def _shifted(bases: list[mpz], key: PublicKey, product: HEProductParameters) -> list[mpz]:
    """The bases, then copies whose plaintexts are moved by one row's slots, by two rows', …"""
    step = mpz(1) << product.columns * product.slots.width
    copies = list(bases)
    for _ in range(product.group - 1):
        bases = [pow(base, step, key.modulus) for base in bases]
        copies += bases
    return copies


@dataclass(frozen=True)
class HEContext:
    """What a party needs at its seat to work with ciphertexts."""

    keyring: Keyring
    tables: Tables


@dataclass(frozen=True)
class HEOperations:
    """`Homomorphic` at one address, with real keys. `made` gives what was made beforehand under a label."""

    keyring: Keyring = field(repr=False)
    tables: Tables = field(repr=False)
    iteration: int
    store_address: Address
    made: Callable[[str], Ciphers] = field(repr=False)

    def encrypt(self, label: str, party: Party, product: HEProductParameters, values: ring.Ring) -> Ciphers:
        del party
        key, zeros = self.keyring.own.public, self.made(label)
        plains = product.encrypted_slots.pack(_in_packs(product, values))
        return he.encrypt(key, plains, zeros).reshape(product.encrypted_shape(len(values)))

    def check(self, party: Party, peer: int, y: Ciphers) -> Ciphers:
        _checked(party.names[peer], self.keyring.public(peer), y)
        return y

    def multiply(
        self, label: str, party: Party, peer: int, product: HEProductParameters, x: csr_array
    ) -> tuple[Ciphers, ring.Ring]:
        del party
        key, rows = self.keyring.public(peer), x.shape[0]
        exponents = _exponents(product, x)
        uses = exponents.nnz * max(1, product.rows // max(1, rows))
        tables = self.tables.of(self.iteration, peer, key, product, uses)
        packs = [row_products(_grouped(product, exponents), table) for table in tables]
        products = [value for row in zip(*packs, strict=True) for value in row]
        masked, share = self._masked(label, key, product, products)
        return masked.reshape(product.product_shape(rows)), _rows_of(product, share, rows)

    def accumulate(
        self, party: Party, peer: int, product: HEProductParameters, x: csr_array, y: Ciphers
    ) -> ColumnCiphertexts:
        key = self.keyring.public(peer)
        exponents = _exponents(product, x)
        parts = []
        for pack in range(product.packs):
            values = _checked(party.names[peer], key, y[:, pack])
            numbers, products = column_products(exponents, values, key.modulus, product.exponent_bits)
            parts.append(he.to_ciphers(products, key.size))
        return ColumnCiphertexts(numbers, np.stack(parts, axis=1))

    def mask(
        self, label: str, party: Party, peer: int, product: HEProductParameters, width: int, found: ColumnCiphertexts
    ) -> tuple[Ciphers, ring.Ring]:
        del party
        products = [mpz(1)] * (width * product.packs)
        values = he.from_ciphers(found.ciphers)
        for place, number in enumerate(found.numbers.tolist()):
            row = values[place * product.packs : (place + 1) * product.packs]
            products[number * product.packs : (number + 1) * product.packs] = row
        masked, share = self._masked(label, self.keyring.public(peer), product, products)
        return masked.reshape(width, product.packs), _rows_of(product, share, width)

    def decrypt(self, party: Party, peer: int, product: HEProductParameters, z: Ciphers, rows: int) -> ring.Ring:
        own = self.keyring.own
        ciphers = _checked(party.names[peer], own.public, z)
        try:
            values = product.slots.unpack([own.decrypt(cipher) for cipher in ciphers])
        except ValueError:
            raise RefusedError(
                f"{party.names[peer]} sent a ciphertext whose plaintext is above the bound: one of us has another key, "
                "or it does not follow the protocol"
            ) from None
        return _rows_of(product, values, rows) << ring.DTYPE(product.shift)

    def _masked(
        self, label: str, key: PublicKey, product: HEProductParameters, products: Sequence[mpz]
    ) -> tuple[Ciphers, ring.Ring]:
        """Each product times an encrypted mask, and the negated masks mod 2^64."""
        masks, modulus = he.from_ciphers(self.made(label)), key.modulus
        masked = [value * mask % modulus for value, mask in zip(products, masks, strict=True)]
        random = mask_bytes(self.keyring.seed, self.store_address, label, product, len(masked))
        share = (ring.DTYPE(0) - product.slots.residues(random)) << ring.DTYPE(product.shift)
        return he.to_ciphers(masked, key.size), share


def _checked(peer: str, key: PublicKey, ciphers: Ciphers) -> list[mpz]:
    values = he.from_ciphers(ciphers)
    try:
        he.check_ciphers(key, values)
    except ValueError:
        raise RefusedError(f"{peer} sent something that is no ciphertext under the key that was agreed on") from None
    return values


def _exponents(product: HEProductParameters, x: csr_array) -> csr_array:
    """The whole numbers that stand for x."""
    return csr_array((x.data.view(np.int64) >> product.shift, x.indices, x.indptr), shape=x.shape)


def _grouped(product: HEProductParameters, x: csr_array) -> csr_array:
    """Several rows as one: the second row's columns come after the first's, where the shifted copies are."""
    if product.group == 1:
        return x
    rows, width = x.shape
    row = np.repeat(np.arange(rows), np.diff(x.indptr))
    indices = x.indices + (row % product.group) * width
    indptr = np.append(x.indptr[:-1][:: product.group], x.indptr[-1])
    return csr_array((x.data, indices, indptr), shape=(len(indptr) - 1, width * product.group))


def _in_packs(product: HEProductParameters, values: ring.Ring) -> ring.Ring:
    """Rows × columns as plaintexts × slots, with zeros where the last pack is not full."""
    count = product.encrypted_slots.count
    missing = product.packs * count - product.columns
    return np.pad(values, ((0, 0), (0, missing))).reshape(-1, count)


def _rows_of(product: HEProductParameters, slots: ring.Ring, rows: int) -> ring.Ring:
    """Plaintexts × slots as rows × columns."""
    per_row = product.packs * product.slots.count // product.group
    return slots.reshape(-1, per_row)[:rows, : product.columns]
