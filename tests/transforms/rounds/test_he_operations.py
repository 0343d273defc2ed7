"""Operations on ciphertexts: shares add up, and what the owner of the key learns from a masked product."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import product as pairs

import gmpy2
import numpy as np
import pytest
from gmpy2 import mpz
from scipy.sparse import csr_array

from support.kmeans_in_memory import PAILLIER, SMALL, keyrings
from support.parties import NAMES
from veilmeans.crypto import prg, ring
from veilmeans.crypto.he import scheme as he
from veilmeans.crypto.he.product_parameters import HEProductParameters, SchemeParameters
from veilmeans.crypto.he.scheme import Ciphertexts
from veilmeans.io.storage.he_keyring import Keyring
from veilmeans.schemas.address import Address
from veilmeans.schemas.party import Party
from veilmeans.transforms.offline.ciphertexts import make_ciphertexts
from veilmeans.transforms.rounds import forked_work
from veilmeans.transforms.rounds.he_operations import HEOperations, PowerTableCache
from veilmeans.transforms.rounds.interfaces import CiphertextNeed

ROWS, WIDTH = 3, 4
OWNER, PEER = Party(0, NAMES[:2]), Party(1, NAMES[:2])
ADDRESS = Address("store.0", 0, "stage", 0)


@dataclass(frozen=True)
class HEPair:
    """Two parties: payco has X, of zeros and ones; shop has Y and the key. `fresh`: masks have fresh randomness."""

    product: HEProductParameters
    seed: bytes = b"desk"
    fresh: bool = True
    processes: int = 1

    @property
    def keyrings(self) -> tuple[Keyring, ...]:
        rings = keyrings(2, self.product.cipher)
        return tuple(replace(each, seed=prg.derive(self.seed, str(i))) for i, each in enumerate(rings))

    @property
    def key(self) -> he.PrivateKey:
        return self.keyrings[1].own

    def operations(self, party: int, counts: dict[str, int], encrypted: Ciphertexts | None = None) -> HEOperations:
        """A party's operations; `counts`: how many ciphertexts were made offline for each label."""
        tables = PowerTableCache(lambda *_: encrypted)  # type: ignore[arg-type, return-value]
        take = lambda label: self.offline(party, label, counts[label])  # noqa: E731
        return HEOperations(self.keyrings[party], tables, 0, ADDRESS, take, self.processes)

    def offline(self, party: int, label: str, count: int) -> Ciphertexts:
        """Make a party's ciphertexts of zeros (shop) or of masks (payco)."""
        masked = party == 0
        need = CiphertextNeed(label, party, 1, count, self.product, masked)
        if self.fresh or not masked:
            return make_ciphertexts(need, self.keyrings[party], ADDRESS, self.processes)
        with pytest.MonkeyPatch.context() as patch:
            ones = partial(np.full, fill_value=he.to_ciphertexts([mpz(1)], self.key.public.size)[0])
            patch.setattr(he, "encrypt_zeros", lambda key, random: ones(len(random), dtype=f"V{key.size}"))
            return make_ciphertexts(need, self.keyrings[party], ADDRESS)

    def y(self, rows: int) -> ring.Ring:
        """The share that shop encrypts, always the same."""
        return np.arange(1, rows * self.product.columns + 1, dtype=np.uint64).reshape(rows, -1) * np.uint64(0x123456789)

    def encrypted(self, rows: int) -> Ciphertexts:
        """Enc(Y)."""
        shop = self.operations(1, {"y": rows * self.product.packs})
        return shop.encrypt("y", PEER, self.product, self.y(rows))

    def encrypted_zeros(self, rows: int) -> list[mpz]:
        """The randomness of Enc(Y), which shop knows."""
        return he.from_ciphertexts(self.offline(1, "y", rows * self.product.packs))

    def distances(self, x: csr_array) -> tuple[Ciphertexts, ring.Ring]:
        """Masked ciphertexts of X·Y, and payco's share."""
        count = int(np.prod(self.product.product_shape(x.shape[0])))
        owner = self.operations(0, {"z": count}, self.encrypted(x.shape[1]))
        return owner.multiply("z", OWNER, 1, self.product, x)

    def sums(self, x: csr_array) -> tuple[Ciphertexts, ring.Ring]:
        """Masked ciphertexts of Xᵀ·Y, and payco's share."""
        owner = self.operations(0, {"z": x.shape[1] * self.product.packs})
        sums = owner.accumulate(OWNER, 1, self.product, x, self.encrypted(x.shape[0]))
        return owner.mask("z", OWNER, 1, self.product, x.shape[1], sums)

    def decrypted_slots(self, ciphertexts: Ciphertexts) -> list[int]:
        """The slots that shop decrypts."""
        width, count = self.product.slots.width, self.product.slots.count
        plains = he.decrypt(self.key, ciphertexts)
        return [int(plain) >> slot * width & (1 << width) - 1 for plain in plains for slot in range(count)]

    def randomness_of(self, ciphertext: mpz) -> mpz:
        """The randomness of a ciphertext, which shop computes by dividing by its plaintext's encryption."""
        public = self.key.public
        inverse = gmpy2.invert(public.encrypt_unrandomised(self.key.decrypt(ciphertext)), public.modulus)
        return ciphertext * inverse % public.modulus


def parameters(cipher: SchemeParameters = SMALL, group: int = 1, columns: int = 2) -> HEProductParameters:
    return HEProductParameters(cipher, ROWS, 0, 0, WIDTH, columns, 45, group)


X = csr_array(np.array([[1, 0, 1, 1], [0, 0, 0, 0], [1, 1, 0, 1]], np.uint64))
EMPTY, FULL = csr_array((ROWS, WIDTH), dtype=np.uint64), csr_array(np.ones((ROWS, WIDTH), np.uint64))
STEPS: dict[str, Callable[[HEPair, csr_array], tuple[Ciphertexts, ring.Ring]]] = {
    "distances": HEPair.distances,
    "sums": HEPair.sums,
}
PRODUCTS = {"ou": parameters(), "paillier": parameters(PAILLIER), "grouped rows": parameters(group=2, columns=1)}
CASES = [*pairs(STEPS, ("ou", "paillier")), ("distances", "grouped rows")]


@pytest.mark.parametrize(("step", "name"), CASES)
def test_shares_of_both_parties_add_up_to_the_product(step: str, name: str) -> None:
    pair = HEPair(PRODUCTS[name])
    masked, mine = STEPS[step](pair, X)
    x = X.toarray() if step == "distances" else X.toarray().T
    theirs = pair.operations(1, {}).decrypt(PEER, 0, pair.product, masked, len(x))
    np.testing.assert_array_equal(mine + theirs, x @ pair.y(x.shape[1]))


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("x", [EMPTY, FULL], ids=["zeros", "ones"])
def test_decrypted_slots_are_uniform_whatever_the_matrix_is(step: str, x: csr_array) -> None:
    """X and Y are always the same, payco's seeds differ: no bit of the mask is biased by six deviations."""
    product, tries = parameters(), 40
    parties = [HEPair(product, seed=bytes([number]) * 4) for number in range(tries)]
    slots = [slot for pair in parties for slot in pair.decrypted_slots(STEPS[step](pair, x)[0])]
    assert len({slot % 2**64 for slot in slots}) == len(slots) >= tries * ROWS * 2
    masked = [slot - (1 << product.bound) for slot in slots]
    assert all(0 <= value < (1 << product.bound + product.sigma) + (1 << product.bound) for value in masked)
    limit = 6 * len(slots) ** 0.5 / 2
    for bit in range(product.bound + product.sigma):
        ones = sum(value >> bit & 1 for value in masked)
        assert abs(ones - len(slots) / 2) < limit, bit


def possible_randomness(pair: HEPair, step: str) -> set[mpz]:
    """Compute the randomness that a ciphertext would have for any row (or column) of zeros and ones."""
    public, product = pair.key.public, pair.product
    zeros = pair.encrypted_zeros(WIDTH if step == "distances" else ROWS)
    shifted = [
        gmpy2.powmod(zero, 1 << row * product.columns * product.slots.width, public.modulus)
        for row in range(product.group)
        for zero in zeros
    ]
    possible = {mpz(1)}
    for each in shifted:
        possible |= {value * each % public.modulus for value in possible}
    return possible


def rows_found(pair: HEPair, step: str) -> list[bool]:
    """Return for each ciphertext whether the owner of the key finds its row among all that are possible."""
    masked, _ = STEPS[step](pair, X)
    randomness = [pair.randomness_of(ciphertext) for ciphertext in he.from_ciphertexts(masked)]
    possible = possible_randomness(pair, step)
    return [each in possible for each in randomness]


@pytest.mark.parametrize(("step", "name"), CASES)
def test_the_owner_of_the_key_cannot_find_a_row_by_its_randomness(step: str, name: str) -> None:
    """The owner finds all of them if the masks have no fresh randomness."""
    pair = HEPair(PRODUCTS[name])
    assert all(rows_found(replace(pair, fresh=False), step))
    assert not any(rows_found(pair, step))


@pytest.mark.parametrize("bits", [1, 9])
@pytest.mark.parametrize("group", [1, 2])
def test_forks_change_no_bit(bits: int, group: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products by tables and by multiplication alone, sums, encryptions and decryptions."""
    monkeypatch.setattr(forked_work, "WORTH", 1)
    x = csr_array(np.array([[1, 0, 5, -3], [0, 0, 0, 0], [1, 7, 0, 1]]).astype(np.uint64)) if bits > 1 else X
    product = replace(parameters(group=group), magnitude=bits - 1)
    alone, spread = (HEPair(product, processes=processes) for processes in (1, 3))
    z, share = alone.distances(x)
    for ours, theirs in zip((z, share, *alone.sums(x)), (*spread.distances(x), *spread.sums(x)), strict=True):
        assert ours.tobytes() == theirs.tobytes()
    opened = [pair.operations(1, {}).decrypt(PEER, 0, product, z, x.shape[0]) for pair in (alone, spread)]
    np.testing.assert_array_equal(*opened)
