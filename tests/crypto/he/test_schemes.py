"""Both schemes against integers and against pinned ciphertexts; keys that are accepted, and those that are refused."""

import hashlib
import pickle
import sys
from collections.abc import Callable
from typing import Any

import gmpy2
import numpy as np
import pytest
from gmpy2 import mpz
from hypothesis import given, settings
from hypothesis import strategies as st

from support.fixed_values import SCHEMES, fixed_key, number
from veilmeans.crypto.he import okamoto_uchiyama
from veilmeans.crypto.he import scheme as he
from veilmeans.crypto.he.scheme import (
    PrivateKey,
    check_ciphertexts,
    decrypt,
    encrypt,
    encrypt_zeros,
    from_ciphertexts,
    generate_key,
    private_key_from_json,
    public_key_from_json,
    to_ciphertexts,
)

KNOWN = {
    ("okamoto-uchiyama", 1024): "8208b789c2050e715adb1681d3750a9c38e8093d0c558f1b470fc76cc5f7ae7a",
    ("paillier", 1024): "347913fc83ae85d6b9e315802c6c914025fbb81272228d5e080f67918484e684",
    ("okamoto-uchiyama", 2048): "678a1b71b2fc14e6832546017bd3fa18f6032661234752e7321f3d7ee4b03690",
    ("paillier", 2048): "04dede0319c57b00b8f7f293d0df180b7f7346a0f887bd1d4c7b1b066b9182cf",
}
"""SHA-256 of the ciphertext of number("plain", capacity) with the random number("random", random_bits(40))."""
SMALL = (
    "865ce269cc9b777ecda10d50a4e9ee3fed940c8d6e7cb84681ad0a9e31b96e8b"
    "d0219d49cdc2111f1e8bacd8eb1e1d42c6d529428ad9245f5bc8ded42c3a5d09"
    "fc39f1bd8c6c2761868227cc20477245648054f1659df64a350d710c079d3613"
    "9bb1eb583e46cca58d389e8df80a5089a2034c6f0f1cc50261f4c97bf129c738"
)
"""The ciphertext under Okamoto–Uchiyama with 1024 bits."""


def randoms(key: he.PublicKey, count: int, label: str = "r", growth: int = 0) -> np.ndarray:
    size = -(-key.random_bits(growth) // 8)
    return np.frombuffer(hashlib.shake_256(label.encode()).digest(count * size), np.uint8).reshape(count, size)


def encrypted(key: PrivateKey, plains: list[int], label: str = "r") -> he.Ciphertexts:
    return encrypt(
        key.public, [mpz(each) for each in plains], encrypt_zeros(key.public, randoms(key.public, len(plains), label))
    )


def plains_of(key: PrivateKey) -> st.SearchStrategy[int]:
    top = 2**key.public.capacity - 1
    return st.sampled_from([0, 1, 2**64 - 1, 2**64, top - 1, top]) | st.integers(0, top)


@pytest.mark.parametrize("scheme", SCHEMES)
@settings(deadline=None, max_examples=25)
@given(st.data())
def test_decryption_is_the_inverse_of_encryption(scheme: str, data: st.DataObject) -> None:
    key = fixed_key(scheme)
    plains = data.draw(st.lists(plains_of(key), max_size=3))
    ciphertexts = encrypted(key, plains)
    assert (ciphertexts.shape, ciphertexts.dtype) == ((len(plains),), np.dtype(f"V{key.public.size}"))
    check_ciphertexts(key.public, from_ciphertexts(ciphertexts))
    assert decrypt(key, ciphertexts) == plains


@pytest.mark.parametrize("scheme", SCHEMES)
@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(-(2**24), 2**24)), min_size=1, max_size=4),
    st.integers(2**91, 2**200),
)
def test_products_of_powers_are_sums_of_products(scheme: str, terms: list[tuple[int, int]], mask: int) -> None:
    key = fixed_key(scheme)
    modulus = key.public.modulus
    product = key.public.encrypt_unrandomised(mpz(mask))
    for ciphertext, (_, factor) in zip(from_ciphertexts(encrypted(key, [y for y, _ in terms])), terms, strict=True):
        product = product * gmpy2.powmod(ciphertext, factor, modulus) % modulus
    assert key.decrypt(product) == mask + sum(y * factor for y, factor in terms)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_encryptions_of_zero_are_fresh_and_decrypt_to_zero(scheme: str) -> None:
    key = fixed_key(scheme)
    ciphertexts = encrypt_zeros(key.public, randoms(key.public, 5, growth=70))
    assert decrypt(key, ciphertexts) == [0] * 5
    assert len(set(from_ciphertexts(ciphertexts))) == 5
    once, again = (from_ciphertexts(encrypted(key, [7], label))[0] for label in ("one", "other"))
    assert once != again


def test_random_bits_grow_with_the_randomness_to_hide() -> None:
    assert [fixed_key("okamoto-uchiyama").public.random_bits(growth) for growth in (0, 70)] == [256, 326]
    assert [fixed_key("paillier").public.random_bits(growth) for growth in (0, 70)] == [1088, 1088]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_plaintext_above_the_capacity_is_refused(scheme: str) -> None:
    public = fixed_key(scheme).public
    public.encrypt_unrandomised(mpz(2**public.capacity - 1))
    for plain in (2**public.capacity, -1):
        with pytest.raises(ValueError, match="more than"):
            public.encrypt_unrandomised(mpz(plain))


@pytest.mark.parametrize(("scheme", "bits"), KNOWN)
def test_ciphertexts_are_the_pinned_ones(scheme: str, bits: int) -> None:
    key = fixed_key(scheme, bits)
    plain, random = number("plain", key.public.capacity), number("random", key.public.random_bits(40))
    zero = to_ciphertexts([key.public.encrypt_zero(random)], key.public.size)
    ciphertext = encrypt(key.public, [plain], zero)
    assert hashlib.sha256(ciphertext.tobytes()).hexdigest() == KNOWN[scheme, bits]
    assert decrypt(key, ciphertext) == [plain]
    if (scheme, bits) == ("okamoto-uchiyama", 1024):
        assert ciphertext.tobytes().hex() == SMALL


def test_okamoto_uchiyama_follows_its_equation() -> None:
    key = fixed_key("okamoto-uchiyama")
    n, g = (int(key.public.to_json()[name], 16) for name in "ng")  # type: ignore[arg-type]
    for plain, random in ((0, 0), (5, 1), (2**340 - 1, 2**512), (2**100 + 1, 2**255 + 1)):
        expected = pow(g, plain, n) * pow(pow(g, n, n), random, n) % n
        assert key.public.encrypt_unrandomised(mpz(plain)) * key.public.encrypt_zero(mpz(random)) % n == expected


def test_paillier_follows_its_equation() -> None:
    key = fixed_key("paillier")
    n = int(key.public.to_json()["n"], 16)  # type: ignore[arg-type]
    for plain, random in ((0, 1), (5, 2), (2**1000, n + 3)):
        expected = pow(n + 1, plain, n * n) * pow(random, n, n * n) % (n * n)
        assert key.public.encrypt_unrandomised(mpz(plain)) * key.public.encrypt_zero(mpz(random)) % (n * n) == expected
    with pytest.raises(ValueError, match="not a unit"):
        key.public.encrypt_zero(mpz(0))


@pytest.fixture(scope="module")
def new_keys() -> list[okamoto_uchiyama.PrivateKey]:
    return [okamoto_uchiyama.generate_key(bits) for bits in (1024, 1031, 2048)]


def test_new_keys_have_primes_of_the_right_lengths(new_keys: list[okamoto_uchiyama.PrivateKey]) -> None:
    for key, bits in zip(new_keys, (1024, 1031, 2048), strict=True):
        p, q, t, n = key.p, key.q, key.t, key.public.n
        assert all(gmpy2.is_prime(each) for each in (p, q, t))
        assert (p - 1) % t == 0
        assert n == p * p * q
        assert [each.bit_length() for each in (n, p, t)] == [bits, bits // 3, 256]
        assert (key.public.bits, key.public.capacity, key.public.size) == (bits, bits // 3 - 1, (bits + 7) // 8)


def test_new_keys_have_generators_of_the_right_orders(new_keys: list[okamoto_uchiyama.PrivateKey]) -> None:
    for key in new_keys:
        square, p, t = key.p**2, key.p, key.t
        g, h = key.public.g % square, key.public.h % square
        assert pow(g, p * t, square) == 1
        assert 1 not in (pow(g, p, square), pow(g, t, square))
        assert h != 1
        assert pow(h, t, square) == 1


def test_the_public_jacobi_symbol_reveals_no_bit(new_keys: list[okamoto_uchiyama.PrivateKey]) -> None:
    for key in new_keys:
        assert gmpy2.jacobi(key.public.g, key.public.n) == gmpy2.jacobi(key.public.h, key.public.n) == 1


def test_a_new_paillier_key_encrypts_and_decrypts() -> None:
    key = generate_key("paillier", 1024)
    assert (key.public.modulus.bit_length() + 1) // 2 == key.public.bits == 1024
    assert decrypt(key, encrypted(key, [2**1023 - 1])) == [2**1023 - 1]


@pytest.mark.parametrize(("scheme", "bits"), [("okamoto-uchiyama", 959), ("paillier", 255), ("paillier", 1025)])
def test_an_impossible_key_length_is_refused(scheme: str, bits: int) -> None:
    with pytest.raises(ValueError, match="bits"):
        generate_key(scheme, bits)


def test_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(ValueError, match="rsa"):
        generate_key("rsa", 2048)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_keys_are_restored_from_json_and_from_a_pickle(scheme: str) -> None:
    key = fixed_key(scheme)
    ciphertexts = encrypted(key, [3, 2**300])
    assert private_key_from_json(key.to_json()) == key
    assert public_key_from_json(key.public.to_json()) == key.public
    assert decrypt(private_key_from_json(key.to_json()), ciphertexts) == [3, 2**300]
    assert len(pickle.dumps(key.public)) < 2000
    assert decrypt(pickle.loads(pickle.dumps(key)), ciphertexts) == [3, 2**300]  # noqa: S301


@pytest.mark.parametrize("scheme", SCHEMES)
def test_neither_repr_nor_the_public_key_contains_the_secret(scheme: str) -> None:
    key = fixed_key(scheme)
    for name in {"p", "q", "t"} & set(key.to_json()):
        secret = int(key.to_json()[name], 16)  # type: ignore[arg-type]
        for shown in (repr(key), str(key.public.to_json())):
            assert str(secret) not in shown
            assert f"{secret:x}" not in shown


Change = Callable[[dict[str, Any]], dict[str, Any]]
HOSTILE_BOTH: dict[str, Change] = {
    "even n": lambda key: key | {"n": f"{int(key['n'], 16) - 1:x}"},
    "short n": lambda key: key | {"n": key["n"][:-2] + "1"},
    "long n": lambda key: key | {"n": "1" + key["n"]},
    "another length": lambda key: key | {"bits": 1032},
    "text for bits": lambda key: key | {"bits": "1024"},
    "true for bits": lambda key: key | {"bits": True},
    "too many bits": lambda key: key | {"bits": 10**9},
    "negative n": lambda key: key | {"n": "-" + key["n"][1:]},
    "not a number": lambda key: key | {"n": "n"},
    "n as integer": lambda key: key | {"n": int(key["n"], 16)},
    "no n": lambda key: {name: key[name] for name in key if name != "n"},
    "an extra field": lambda key: key | {"capacity": 5000},
    "another scheme": lambda key: key | {"scheme": "rsa"},
}
HOSTILE_OKAMOTO_UCHIYAMA: dict[str, Change] = {
    "g = 0": lambda key: key | {"g": "0"},
    "g = 1": lambda key: key | {"g": "1"},
    "g = n − 1": lambda key: key | {"g": f"{int(key['n'], 16) - 1:x}"},
    "g = n + 2": lambda key: key | {"g": f"{int(key['n'], 16) + 2:x}"},
    "g = p": lambda key: key | {"g": f"{number_of(key, 'p'):x}"},
    "g not a square mod q": lambda key: key | {"g": f"{not_square(key):x}"},
    "h = 1": lambda key: key | {"g": f"{without_randomness(key):x}"},
}


def number_of(key: dict[str, Any], name: str) -> int:
    return int(fixed_key(key["scheme"]).to_json()[name], 16)  # type: ignore[arg-type]


def not_square(key: dict[str, Any]) -> int:
    return next(g for g in range(2, 1000) if gmpy2.jacobi(g, int(key["n"], 16)) == -1)


def without_randomness(key: dict[str, Any]) -> int:
    """Make a g of order p mod n: g^n = 1."""
    return 1 + number_of(key, "p") * number_of(key, "q")


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("change", HOSTILE_BOTH.values(), ids=HOSTILE_BOTH)
def test_a_hostile_public_key_is_refused(scheme: str, change: Change) -> None:
    with pytest.raises(ValueError, match=r"n is not|a key"):
        public_key_from_json(change(dict(fixed_key(scheme).public.to_json())))


@pytest.mark.parametrize("change", HOSTILE_OKAMOTO_UCHIYAMA.values(), ids=HOSTILE_OKAMOTO_UCHIYAMA)
def test_a_hostile_generator_is_refused(change: Change) -> None:
    with pytest.raises(ValueError, match=r"g is not|g has|h = g"):
        public_key_from_json(change(dict(fixed_key("okamoto-uchiyama").public.to_json())))


def test_a_number_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="1024 bits"):
        public_key_from_json(fixed_key("paillier").public.to_json() | {"n": "1" * 10**6})


def test_a_public_key_that_is_not_a_mapping_is_refused() -> None:
    with pytest.raises(ValueError, match="schemes"):
        public_key_from_json(["okamoto-uchiyama"])  # type: ignore[arg-type]


@pytest.mark.parametrize(("scheme", "name"), [*(("okamoto-uchiyama", each) for each in "pqtg"), ("paillier", "p")])
def test_a_changed_private_key_is_refused_without_naming_it(scheme: str, name: str) -> None:
    content = fixed_key(scheme).to_json()
    changed = f"{int(content[name], 16) + 2:x}"  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"\w") as caught:
        private_key_from_json(content | {name: changed})
    assert changed not in str(caught.value)


def test_a_square_is_refused_as_a_paillier_modulus() -> None:
    square = number("square", 512) | 1 | 15 << 508
    with pytest.raises(ValueError, match="square"):
        public_key_from_json({"scheme": "paillier", "bits": 1024, "n": f"{square * square:x}"})


@pytest.mark.parametrize("scheme", SCHEMES)
def test_ciphertexts_that_are_not_units_are_refused(scheme: str) -> None:
    key = fixed_key(scheme)
    fine = from_ciphertexts(encrypted(key, [1, 2]))
    factor = int(key.to_json()["q"], 16)  # type: ignore[arg-type]
    check_ciphertexts(key.public, fine)
    check_ciphertexts(key.public, [])
    for bad in (mpz(0), key.public.modulus, key.public.modulus + 1, mpz(-1), mpz(5 * factor)):
        with pytest.raises(ValueError, match="a ciphertext"):
            check_ciphertexts(key.public, [*fine, bad])


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**64 - 1), max_size=6))
def test_residues_are_restored_from_their_array(values: list[int]) -> None:
    ciphertexts = to_ciphertexts([mpz(each) for each in values], 8)
    assert ciphertexts.tobytes() == np.array(values, "<u8").tobytes()
    assert from_ciphertexts(ciphertexts) == values
    assert from_ciphertexts(ciphertexts[::-1]) == values[::-1]
    assert from_ciphertexts(ciphertexts.reshape(-1, 1)) == values


def test_every_plaintext_needs_an_encryption_of_zero() -> None:
    key = fixed_key("okamoto-uchiyama")
    with pytest.raises(ValueError, match="zip"):
        encrypt(key.public, [mpz(1), mpz(2)], encrypt_zeros(key.public, randoms(key.public, 1)))


def test_only_paillier_needs_phe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "phe", None)
    with pytest.raises(ImportError, match="phe"):
        generate_key("paillier", 1024)
    with pytest.raises(ImportError, match="phe"):
        he.check_installed("paillier")
    he.check_installed("okamoto-uchiyama")
    assert generate_key("okamoto-uchiyama", 1024).public.bits == 1024
