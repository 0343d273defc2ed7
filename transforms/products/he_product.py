"""Cross products by the `he` engine: X_i·⟨Y⟩_j under P_j's key, for owners whose X is wide and sparse.

  distance   once per iteration, over column shards: every P_j sends P_i the encrypted rows of ⟨μ⟩_jᵀ for P_i's columns;
             then over row shards: P_i sends P_j its masked products, one row of X·μᵀ after the other
  update     over row shards: P_j sends P_i its encrypted rows of ⟨C⟩_j, and P_i multiplies them into one ciphertext for
             each of its columns; a Beam combiner multiplies those of all shards;
             then over column shards: P_i masks them, once, and sends them to P_j

No message is as large as X; docs/security.md has what each message reveals. The operations are in
`rounds.he_operations`; `products.cross_product` calls these functions for the owners that use this engine.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from gmpy2 import mpz

from veilmeans.crypto import ring
from veilmeans.crypto.he.product_parameters import HEProductParameters
from veilmeans.crypto.he.scheme import from_ciphertexts, to_ciphertexts
from veilmeans.schemas.arrays import Array, Arrays
from veilmeans.schemas.layout import Layout
from veilmeans.schemas.party import Party
from veilmeans.transforms.rounds.interfaces import ColumnCiphertexts, Randomness
from veilmeans.transforms.rounds.protocol import Inbox, Protocol, Round, Sent, require

if TYPE_CHECKING:
    from scipy.sparse import csr_array

OwnerProducts = Sequence[HEProductParameters | None]
"""For each owner the parameters of its homomorphic product; None: it uses `beaver`."""
CSR_ARRAYS = ("x.values", "x.indices", "x.indptr")
"""This party's own matrix in compressed rows, in a state."""


def csr_from_state(state: Arrays, width: int) -> "csr_array":
    """Rebuild this party's CSR matrix from a state."""
    from scipy.sparse import csr_array

    indptr = state["x.indptr"]
    return csr_array((require(state, "x.values"), state["x.indices"], indptr), shape=(len(indptr) - 1, width))


def csr_to_state(matrix: "csr_array") -> Arrays:
    """Turn this party's CSR matrix into arrays of a state."""
    return dict(zip(CSR_ARRAYS, (matrix.data, matrix.indices, matrix.indptr), strict=True))


# distance, over row shards
def send_products(
    product: HEProductParameters, party: Party, x: "csr_array", randomness: Randomness
) -> tuple[dict[int, dict[str, Array]], ring.Ring]:
    """Compute, as an owner, the masked products with each peer's Enc(Y), and the owner's share of their sum."""
    he = randomness.he()
    total = np.zeros((x.shape[0], product.columns), ring.DTYPE)
    messages = {}
    for peer in party.others:
        masked, share = he.multiply(f"product.{peer}", party, peer, product, x)
        messages[peer] = {"z": masked}
        total += share
    return messages, total


def receive_products(
    product: HEProductParameters, party: Party, owner: int, rows: int, inbox: Inbox, randomness: Randomness
) -> ring.Ring:
    """Decrypt, as a peer, its share of the product with the owner's matrix."""
    z = inbox.from_peer(owner, "z", _expected_ciphertexts(product, product.product_shape(rows)))
    return randomness.he().decrypt(party, owner, product, z, rows)


# update, over row shards
def send_encrypted(
    products: Mapping[int, HEProductParameters], party: Party, values: ring.Ring, randomness: Randomness
) -> dict[int, dict[str, Array]]:
    """Encrypt, as a peer, its rows of Y for each owner; once for all owners whose products have the same slots."""
    he = randomness.he()
    encrypted: dict[str, Array] = {}
    for product in products.values():
        label = _slots_label(product)
        if label not in encrypted:
            encrypted[label] = he.encrypt(label, party, product, values)
    return {owner: {"y": encrypted[_slots_label(product)]} for owner, product in products.items()}


def receive_encrypted(
    product: HEProductParameters, party: Party, x: "csr_array", inbox: Inbox, randomness: Randomness
) -> dict[str, Array]:
    """Compute, as an owner, a ciphertext of Xᵀ·Y for each peer and each column with a nonzero. They are not masked."""
    he = randomness.he()
    sums: dict[str, Array] = {}
    for peer in party.others:
        y = inbox.from_peer(peer, "y", _expected_ciphertexts(product, product.encrypted_shape(x.shape[0])))
        sums |= _to_state(peer, he.accumulate(party, peer, product, x, y))
    return sums


def _slots_label(product: HEProductParameters) -> str:
    """The label of Enc(Y): owners with the same slots get the same ciphertexts."""
    return f"y.{product.slots.width}.{product.slots.count}"


# over column shards
@dataclass(frozen=True)
class ColumnShardProducts:
    """The owners' products in rounds over column shards, and the layout that says who owns which columns.

    `starts`: of an update, the starts whose clusters come one after the other.
    """

    layout: Layout
    products: tuple[HEProductParameters | None, ...]
    starts: int = 1

    def columns_of(self, owner: int, state: Arrays) -> slice:
        """The owner's columns within this column shard, counted from its first column."""
        first, last = state["columns"].tolist()
        own = self.layout.own_columns_within(owner, slice(first, last))
        return slice(own.start - first, own.stop - first)

    def width(self, owner: int, state: Arrays) -> int:
        """The number of the owner's columns within this column shard."""
        columns = self.columns_of(owner, state)
        return int(columns.stop - columns.start)

    def owners(self, state: Arrays) -> list[tuple[int, HEProductParameters]]:
        """The owners that use `he` and have columns in this column shard, with their products."""
        return [(i, p) for i, p in enumerate(self.products) if p is not None and self.width(i, state)]


def encrypt_centroids(products: ColumnShardProducts) -> Protocol:
    """Send every party's share of μ, encrypted, to the owners.

    State: "columns" (from, to), "mu"; out "y0", "y1", …
    """
    halves = partial(_send_centroids, products), partial(_receive_centroids, products)
    return Protocol("encrypt", (Round("encrypt", *halves, "Enc(⟨μ⟩), to each owner", broadcast=False),))


def _send_centroids(products: ColumnShardProducts, party: Party, state: Arrays, randomness: Randomness) -> Sent:
    he, mu = randomness.he(), require(state, "mu")
    messages: dict[int, dict[str, Array]] = {peer: {} for peer in party.others}
    encrypted: dict[str, Array] = {}
    for owner, product in products.owners(state):
        columns = products.columns_of(owner, state)
        label = f"{_slots_label(product)}.{columns.start}.{columns.stop}"
        if owner != party.index:
            if label not in encrypted:
                encrypted[label] = he.encrypt(label, party, product, np.ascontiguousarray(mu[:, columns].T))
            messages[owner]["y"] = encrypted[label]
    return Sent(state, to=messages)


def _receive_centroids(
    products: ColumnShardProducts, party: Party, state: Arrays, inbox: Inbox, randomness: Randomness
) -> Arrays:
    product = dict(products.owners(state)).get(party.index)
    if product is None:
        return {}
    he = randomness.he()
    like = _expected_ciphertexts(product, product.encrypted_shape(products.width(party.index, state)))
    return {f"y{peer}": he.check(party, peer, inbox.from_peer(peer, "y", like)) for peer in party.others}


def unmask(products: ColumnShardProducts) -> Protocol:
    """Send each owner's masked products to the peers, which decrypt them.

    State: "columns", "s" (k × width), "z0.columns", "z0.ciphertexts", …; out "s".
    "s" gets the shares of the first k − 1 clusters of each start; the last one gets the difference to the sum of all
    clusters, which the owner knows; unless there are shares of all k.
    """
    halves = partial(_send_masked, products), partial(_receive_masked, products)
    return Protocol("unmask", (Round("unmask", *halves, "Enc(Xᵀ⟨C⟩ + R), to each peer", broadcast=False),))


def _send_masked(products: ColumnShardProducts, party: Party, state: Arrays, randomness: Randomness) -> Sent:
    messages: dict[int, dict[str, Array]] = {peer: {} for peer in party.others}
    product = dict(products.owners(state)).get(party.index)
    sums = require(state, "s")
    if product is not None:
        he, width = randomness.he(), products.width(party.index, state)
        for peer in party.others:
            z, share = he.mask(f"mask.{peer}", party, peer, product, width, _from_state(state, peer))
            messages[peer] = {"z": z}
            sums = _add_share(sums, products.columns_of(party.index, state), share, products.starts)
    return Sent({"columns": state["columns"], "s": sums}, to=messages)


def _receive_masked(
    products: ColumnShardProducts, party: Party, state: Arrays, inbox: Inbox, randomness: Randomness
) -> Arrays:
    sums, he = require(state, "s"), randomness.he()
    for owner, product in products.owners(state):
        if owner != party.index:
            width = products.width(owner, state)
            z = inbox.from_peer(owner, "z", _expected_ciphertexts(product, (width, product.packs)))
            share = he.decrypt(party, owner, product, z, width)
            sums = _add_share(sums, products.columns_of(owner, state), share, products.starts)
    return {"s": sums}


def _add_share(sums: ring.Ring, columns: slice, share: ring.Ring, starts: int) -> ring.Ring:
    """Add a share to some columns of the sums (s·k × width).

    It is of each start's k − 1 clusters, or of all: columns × s·(k − 1) or s·k.
    """
    result = sums.copy()
    if share.shape[1] == len(sums):
        result[:, columns] += share.T
        return result
    by_start, added = result.reshape(starts, -1, sums.shape[1]), share.T.reshape(starts, -1, len(share))
    by_start[:, :-1, columns] += added
    by_start[:, -1, columns] -= ring.column_sums(added.swapaxes(0, 1))
    return result


# between the two: products of the row shards' ciphertexts
def ciphertext_names(peer: int) -> tuple[str, str]:
    """The names in a state of what was accumulated under a peer's key: columns, and their ciphertexts."""
    return f"z{peer}.columns", f"z{peer}.ciphertexts"


def ciphertexts_within(state: Arrays, party: Party, first: int, last: int) -> dict[str, Array]:
    """Select an owner's accumulated ciphertexts of its columns `first` … `last` − 1, counted from `first`."""
    selected: dict[str, Array] = {}
    for peer in party.others:
        if ciphertext_names(peer)[0] in state:
            sums = _from_state(state, peer)
            inside = slice(*np.searchsorted(sums.columns, [first, last]).tolist())
            selected |= _to_state(peer, ColumnCiphertexts(sums.columns[inside] - first, sums.ciphertexts[inside]))
    return selected


def _to_state(peer: int, sums: ColumnCiphertexts) -> dict[str, Array]:
    return dict(zip(ciphertext_names(peer), (sums.columns, sums.ciphertexts), strict=True))


def _from_state(state: Arrays, peer: int) -> ColumnCiphertexts:
    columns, ciphertexts = ciphertext_names(peer)
    return ColumnCiphertexts(state[columns], state[ciphertexts])


def multiply_ciphertexts(states: Sequence[Arrays], moduli: Mapping[int, int]) -> dict[str, Array]:
    """Multiply the ciphertexts of several shards, column by column. `moduli`: the peers' public moduli."""
    products: dict[str, Array] = {}
    for peer, modulus in moduli.items():
        sums = [_from_state(state, peer) for state in states if ciphertext_names(peer)[0] in state]
        if sums:
            products |= _to_state(peer, _multiply_columns(sums, mpz(modulus)))
    return products


def _multiply_columns(sums: Sequence[ColumnCiphertexts], modulus: mpz) -> ColumnCiphertexts:
    if len(sums) == 1:
        return sums[0]
    ciphertexts = np.concatenate([each.ciphertexts for each in sums])
    columns, position = np.unique(np.concatenate([each.columns for each in sums]), return_inverse=True)
    packs = ciphertexts.shape[1]
    products = [mpz(1)] * (len(columns) * packs)
    positions = (position[:, None] * packs + np.arange(packs)).reshape(-1)
    for index, value in zip(positions.tolist(), from_ciphertexts(ciphertexts), strict=True):
        products[index] = products[index] * value % modulus
    return ColumnCiphertexts(columns, to_ciphertexts(products, ciphertexts.dtype.itemsize).reshape(-1, packs))


def _expected_ciphertexts(product: HEProductParameters, shape: tuple[int, ...]) -> Array:
    """Zeros in the shape and type of the ciphertexts that a peer must send."""
    return np.zeros(shape, product.cipher.dtype)
