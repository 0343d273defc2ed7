"""The `he` engine's side of the cross products: X_i·⟨Y⟩_j under P_j's key, for owners whose X is wide and sparse.

  distance   once per iteration, over column shards: every P_j sends P_i the encrypted rows of ⟨μ⟩_jᵀ for P_i's columns;
             then over row shards: P_i sends P_j its masked products, one row of X·μᵀ after the other
  update     over row shards: P_j sends P_i its encrypted rows of ⟨C⟩_j, and P_i multiplies them into one ciphertext for
             each of its columns; a Beam combiner multiplies those of all shards;
             then over column shards: P_i masks them, once, and sends them to P_j

Nothing that crosses is X-sized, and what each message tells is in docs/security.md. The steps themselves are in
`rounds.he_operations`; `products.cross_product` calls these for owners that use this engine, beside the others'
products.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from gmpy2 import mpz
from scipy.sparse import csr_array

from veilmeans.crypto import ring
from veilmeans.crypto.he.product_parameters import HEProductParameters
from veilmeans.crypto.he.scheme import from_ciphers, to_ciphers
from veilmeans.schemas.arrays import Array, Arrays
from veilmeans.schemas.layout import Layout
from veilmeans.schemas.party import Party
from veilmeans.transforms.rounds.interfaces import ColumnCiphertexts, Randomness
from veilmeans.transforms.rounds.protocol import Inbox, Protocol, Round, Sent, require

OwnerProducts = Sequence[HEProductParameters | None]
"""For each owner the numbers of its homomorphic product; None: it uses `beaver`."""
MATRIX = ("x.values", "x.indices", "x.indptr")
"""This party's own matrix in compressed rows, in a state."""


def csr_from_state(state: Arrays, width: int) -> csr_array:
    """It, out of a state."""
    indptr = state["x.indptr"]
    return csr_array((require(state, "x.values"), state["x.indices"], indptr), shape=(len(indptr) - 1, width))


def csr_to_state(matrix: csr_array) -> Arrays:
    """It, into a state."""
    return dict(zip(MATRIX, (matrix.data, matrix.indices, matrix.indptr), strict=True))


# distance, over row shards
def send_products(
    product: HEProductParameters, party: Party, x: csr_array, randomness: Randomness
) -> tuple[dict[int, dict[str, Array]], ring.Ring]:
    """An owner: to each peer the masked products with its Enc(Y); and the owner's share of all of them."""
    he = randomness.homomorphic()
    share = np.zeros((x.shape[0], product.columns), ring.DTYPE)
    messages = {}
    for peer in party.others:
        masked, mine = he.multiply(f"product.{peer}", party, peer, product, x)
        messages[peer] = {"z": masked}
        share += mine
    return messages, share


def receive_products(
    product: HEProductParameters, party: Party, owner: int, rows: int, inbox: Inbox, randomness: Randomness
) -> ring.Ring:
    """A peer: its share of the product with the owner's matrix."""
    z = inbox.from_peer(owner, "z", _ciphers(product, product.product_shape(rows)))
    return randomness.homomorphic().decrypt(party, owner, product, z, rows)


# update, over row shards
def send_encrypted(
    products: Mapping[int, HEProductParameters], party: Party, values: ring.Ring, randomness: Randomness
) -> dict[int, dict[str, Array]]:
    """A peer: its rows of Y to each owner, encrypted once for all of them whose products have the same slots."""
    he = randomness.homomorphic()
    made: dict[str, Array] = {}
    for product in products.values():
        label = _label(product)
        if label not in made:
            made[label] = he.encrypt(label, party, product, values)
    return {owner: {"y": made[_label(product)]} for owner, product in products.items()}


def receive_encrypted(
    product: HEProductParameters, party: Party, x: csr_array, inbox: Inbox, randomness: Randomness
) -> dict[str, Array]:
    """An owner: for each peer and each column that has a nonzero, one ciphertext of Xᵀ·Y. They are not masked."""
    he = randomness.homomorphic()
    found: dict[str, Array] = {}
    for peer in party.others:
        y = inbox.from_peer(peer, "y", _ciphers(product, product.encrypted_shape(x.shape[0])))
        columns = he.accumulate(party, peer, product, x, y)
        found |= _found(peer, columns)
    return found


def _label(product: HEProductParameters) -> str:
    """Owners with the same slots get the same ciphertexts."""
    return f"y.{product.slots.width}.{product.slots.count}"


# Over column shards
@dataclass(frozen=True)
class ColumnShardProducts:
    """What rounds over column shards need: who owns which columns, and each owner's product."""

    layout: Layout
    products: tuple[HEProductParameters | None, ...]

    def owned(self, owner: int, state: Arrays) -> slice:
        """The owner's columns within this column shard, counted from its beginning."""
        first, last = state["columns"].tolist()
        own = self.layout.own_within(owner, slice(first, last))
        return slice(own.start - first, own.stop - first)

    def width(self, owner: int, state: Arrays) -> int:
        part = self.owned(owner, state)
        return int(part.stop - part.start)

    def owners(self, state: Arrays) -> list[tuple[int, HEProductParameters]]:
        """Those that have columns here."""
        return [(i, p) for i, p in enumerate(self.products) if p is not None and self.width(i, state)]


def encrypt_centroids(wide: ColumnShardProducts) -> Protocol:
    """Every party's share of μ, encrypted, to the owners. State: "columns" (from, to), "mu"; out "y0", "y1", …"""
    step = Round("encrypt", partial(_send_centres, wide), partial(_keep_centres, wide), "Enc(⟨μ⟩), to each owner")
    return Protocol("encrypt", (step,))


def _send_centres(wide: ColumnShardProducts, party: Party, state: Arrays, randomness: Randomness) -> Sent:
    he, mu = randomness.homomorphic(), require(state, "mu")
    messages: dict[int, dict[str, Array]] = {peer: {} for peer in party.others}
    made: dict[str, Array] = {}
    for owner, product in wide.owners(state):
        part = wide.owned(owner, state)
        label = f"{_label(product)}.{part.start}.{part.stop}"
        if owner != party.index:
            if label not in made:
                made[label] = he.encrypt(label, party, product, np.ascontiguousarray(mu[:, part].T))
            messages[owner]["y"] = made[label]
    return Sent(state, to=messages)


def _keep_centres(
    wide: ColumnShardProducts, party: Party, state: Arrays, inbox: Inbox, randomness: Randomness
) -> Arrays:
    mine = dict(wide.owners(state)).get(party.index)
    if mine is None:
        return {}
    he, like = randomness.homomorphic(), _ciphers(mine, mine.encrypted_shape(wide.width(party.index, state)))
    return {f"y{peer}": he.check(party, peer, inbox.from_peer(peer, "y", like)) for peer in party.others}


def unmask(wide: ColumnShardProducts) -> Protocol:
    """Each owner's products to the peers, masked.

    State: "columns", "s" (k × width), "z0.columns", "z0.ciphers", …; out "s".
    "s" gets the shares of the first k − 1 clusters, and the last one what is missing: all clusters together are a sum
    that the owner knows.
    """
    step = Round("unmask", partial(_send_masked, wide), partial(_add_unmasked, wide), "Enc(Xᵀ⟨C⟩ + R), to each peer")
    return Protocol("unmask", (step,))


def _send_masked(wide: ColumnShardProducts, party: Party, state: Arrays, randomness: Randomness) -> Sent:
    messages: dict[int, dict[str, Array]] = {peer: {} for peer in party.others}
    product = dict(wide.owners(state)).get(party.index)
    sums = require(state, "s")
    if product is not None:
        he, width = randomness.homomorphic(), wide.width(party.index, state)
        for peer in party.others:
            z, share = he.mask(f"mask.{peer}", party, peer, product, width, _columns(state, peer))
            messages[peer] = {"z": z}
            sums = _added(sums, wide.owned(party.index, state), share)
    return Sent({"columns": state["columns"], "s": sums}, to=messages)


def _add_unmasked(
    wide: ColumnShardProducts, party: Party, state: Arrays, inbox: Inbox, randomness: Randomness
) -> Arrays:
    sums, he = require(state, "s"), randomness.homomorphic()
    for owner, product in wide.owners(state):
        if owner != party.index:
            width = wide.width(owner, state)
            z = inbox.from_peer(owner, "z", _ciphers(product, (width, product.packs)))
            sums = _added(sums, wide.owned(owner, state), he.decrypt(party, owner, product, z, width))
    return {"s": sums}


def _added(sums: ring.Ring, part: slice, found: ring.Ring) -> ring.Ring:
    """k × width, with shares of k − 1 clusters (columns × k − 1) added in some columns."""
    after = sums.copy()
    after[:-1, part] += found.T
    after[-1, part] -= ring.column_sums(found.T)
    return after


# Between the two: products of ciphertexts, over shards
def ciphertext_names(peer: int) -> tuple[str, str]:
    """Under which a state has what was accumulated under a peer's key: columns, and their ciphertexts."""
    return f"z{peer}.columns", f"z{peer}.ciphers"


def ciphertexts_within(state: Arrays, party: Party, first: int, last: int) -> dict[str, Array]:
    """What an owner has accumulated for its columns `first` … `last` − 1, counted from `first`."""
    found: dict[str, Array] = {}
    for peer in party.others:
        if ciphertext_names(peer)[0] in state:
            columns = _columns(state, peer)
            part = slice(*np.searchsorted(columns.numbers, [first, last]).tolist())
            found |= _found(peer, ColumnCiphertexts(columns.numbers[part] - first, columns.ciphers[part]))
    return found


def _found(peer: int, columns: ColumnCiphertexts) -> dict[str, Array]:
    return dict(zip(ciphertext_names(peer), (columns.numbers, columns.ciphers), strict=True))


def _columns(state: Arrays, peer: int) -> ColumnCiphertexts:
    numbers, ciphers = ciphertext_names(peer)
    return ColumnCiphertexts(state[numbers], state[ciphers])


def multiply_ciphertexts(parts: Sequence[Arrays], moduli: Mapping[int, int]) -> dict[str, Array]:
    """The ciphertexts of several shards, multiplied column by column. `moduli`: the peers', which are public."""
    found: dict[str, Array] = {}
    for peer, modulus in moduli.items():
        held = [part for part in parts if ciphertext_names(peer)[0] in part]
        if held:
            columns = _multiplied([_columns(part, peer) for part in held], mpz(modulus))
            found |= _found(peer, columns)
    return found


def _multiplied(parts: Sequence[ColumnCiphertexts], modulus: mpz) -> ColumnCiphertexts:
    if len(parts) == 1:
        return parts[0]
    ciphers = np.concatenate([part.ciphers for part in parts])
    numbers, place = np.unique(np.concatenate([part.numbers for part in parts]), return_inverse=True)
    packs = ciphers.shape[1]
    products = [mpz(1)] * (len(numbers) * packs)
    places = (place[:, None] * packs + np.arange(packs)).reshape(-1)
    for at, value in zip(places.tolist(), from_ciphers(ciphers), strict=True):
        products[at] = products[at] * value % modulus
    return ColumnCiphertexts(numbers, to_ciphers(products, ciphers.dtype.itemsize).reshape(-1, packs))


def _ciphers(product: HEProductParameters, shape: tuple[int, ...]) -> Array:
    return np.zeros(shape, product.cipher.dtype)
