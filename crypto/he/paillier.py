"""Paillier encryption through python-paillier (`phe`): the reference that Okamoto–Uchiyama is checked against.

  key      n = p·q
  Enc(m)   (1 + n)^m · r^n mod n²,   r uniform mod n
  Dec(c)   phe's, by the Chinese remainder theorem

phe is licensed GPLv3, so it is imported only when this scheme is chosen, and installed by `veilmeans[paillier]` only.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import gmpy2
from gmpy2 import mpz

from veilmeans.schemas.errors import ConfigError

SCHEME = "paillier"
LEAST_BITS = 256
"""Of n. Far too short to be safe: the configuration asks for more."""
_EXTRA_BITS = 64
"""A random number this much longer than n is nearly uniform mod n."""
_TESTS = 40


@dataclass(frozen=True)
class PublicKey:
    """What the other party gets: n."""

    bits: int
    n: mpz = field(repr=False)

    def __post_init__(self) -> None:
        if self.bits < LEAST_BITS or self.n.bit_length() != self.bits or gmpy2.is_even(self.n):
            raise ValueError(f"n is not an odd number of {self.bits} ≥ {LEAST_BITS} bits")
        if gmpy2.is_square(self.n):
            raise ValueError("n is a square")

    @property
    def scheme(self) -> str:
        return SCHEME

    @cached_property
    def modulus(self) -> mpz:
        return self.n * self.n

    @property
    def capacity(self) -> int:
        """Bits of the largest plaintext: below n."""
        return self.bits - 1

    @property
    def size(self) -> int:
        return -(-2 * self.bits // 8)

    @cached_property
    def _phe(self) -> Any:
        return _library().PaillierPublicKey(int(self.n))

    def random_bits(self, growth: int) -> int:  # noqa: ARG002 - a uniform r hides every product of r's
        return self.bits + _EXTRA_BITS

    def blind(self, random: mpz) -> mpz:
        """r^n for r = random mod n: an encryption of zero."""
        unit = random % self.n
        if gmpy2.gcd(unit, self.n) != 1:
            raise ValueError("a random number is no unit mod n")
        return mpz(self._phe.raw_encrypt(0, r_value=int(unit)))

    def raw(self, plain: mpz) -> mpz:
        """(1 + n)^plain, with no randomness yet, for 0 ≤ plain < 2^capacity."""
        if not 0 <= plain < 1 << self.capacity:
            raise ValueError(f"a plaintext is negative or has more than {self.capacity} bits")
        return mpz(self._phe.raw_encrypt(int(plain), r_value=1))

    def to_json(self) -> dict[str, str | int]:
        return {"scheme": SCHEME, "bits": self.bits, "n": f"{self.n:x}"}


@dataclass(frozen=True)
class PrivateKey:
    """Decrypts what was encrypted under `public`."""

    public: PublicKey
    p: mpz = field(repr=False)
    q: mpz = field(repr=False)

    def __post_init__(self) -> None:
        if self.p * self.q != self.public.n or self.p == self.q:
            raise ValueError("n is not p·q")
        if not all(gmpy2.is_prime(prime, _TESTS) for prime in (self.p, self.q)):
            raise ValueError("p or q is not prime")
        if gmpy2.gcd(self.public.n, (self.p - 1) * (self.q - 1)) != 1:
            raise ValueError("p divides q − 1, or q divides p − 1")

    @cached_property
    def _phe(self) -> Any:
        library = _library()
        return library.PaillierPrivateKey(library.PaillierPublicKey(int(self.public.n)), int(self.p), int(self.q))

    def decrypt(self, cipher: mpz) -> mpz:
        return mpz(self._phe.raw_decrypt(int(cipher)))

    def to_json(self) -> dict[str, str | int]:
        return {"scheme": SCHEME, "bits": self.public.bits, "p": f"{self.p:x}", "q": f"{self.q:x}"}


def private_key(bits: int, p: mpz, q: mpz) -> PrivateKey:
    """The key pair with these numbers."""
    return PrivateKey(PublicKey(bits, p * q), p, q)


def generate(bits: int) -> PrivateKey:
    """A new key pair."""
    if bits < LEAST_BITS or bits % 2:
        raise ValueError(f"a key needs an even number of bits, {LEAST_BITS} or more, not {bits}")
    _, private = _library().generate_paillier_keypair(n_length=bits)
    return private_key(bits, mpz(private.p), mpz(private.q))


def _library() -> Any:
    try:
        from phe import paillier
    except ImportError:
        raise ConfigError(
            "the scheme paillier needs the package phe: `pip install veilmeans[paillier]`, or choose okamoto-uchiyama"
        ) from None
    return paillier
