"""Paillier encryption by python-paillier (`phe`): the reference that Okamoto–Uchiyama is checked against.

  key      n = p·q
  Enc(m)   (1 + n)^m · r^n mod n²,   r uniform mod n
  Dec(c)   phe's, by the Chinese remainder theorem

phe is licensed GPLv3, so it is imported only when this scheme is selected, and installed by `veilmeans[paillier]` only.
Without it, `generate_key`, encryption and decryption raise ImportError.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import gmpy2
from gmpy2 import mpz

SCHEME = "paillier"
MIN_BITS = 256
"""Shortest n. Far too short to be safe: the configuration requires more."""
_EXTRA_BITS = 64  # a random number this much longer than n is nearly uniform mod n
_PRIMALITY_ROUNDS = 40


@dataclass(frozen=True)
class PublicKey:
    """The public key: n."""

    bits: int
    n: mpz = field(repr=False)
    scheme: ClassVar[str] = SCHEME

    def __post_init__(self) -> None:
        if self.bits < MIN_BITS or self.n.bit_length() != self.bits or gmpy2.is_even(self.n):
            raise ValueError(f"n is not an odd number of {self.bits} ≥ {MIN_BITS} bits")
        if gmpy2.is_square(self.n):
            raise ValueError("n is a square")

    @cached_property
    def modulus(self) -> mpz:
        return self.n * self.n

    @property
    def capacity(self) -> int:
        """Bits of the largest plaintext, which is below n."""
        return self.bits - 1

    @property
    def size(self) -> int:
        return -(-2 * self.bits // 8)

    @cached_property
    def _phe(self) -> Any:
        return import_phe().PaillierPublicKey(int(self.n))

    def random_bits(self, growth: int) -> int:  # noqa: ARG002 - a uniform r hides every product of r's
        return self.bits + _EXTRA_BITS

    def encrypt_zero(self, random: mpz) -> mpz:
        """Encrypt zero: r^n for r = random mod n."""
        unit = random % self.n
        if gmpy2.gcd(unit, self.n) != 1:
            raise ValueError("a random number is not a unit mod n")
        return mpz(self._phe.raw_encrypt(0, r_value=int(unit)))

    def encrypt_unrandomised(self, plain: mpz) -> mpz:
        """Encrypt with no randomness: (1 + n)^plain, for 0 ≤ plain < 2^capacity."""
        if not 0 <= plain < 1 << self.capacity:
            raise ValueError(f"a plaintext is negative or has more than {self.capacity} bits")
        return mpz(self._phe.raw_encrypt(int(plain), r_value=1))

    def to_json(self) -> dict[str, str | int]:
        return {"scheme": SCHEME, "bits": self.bits, "n": f"{self.n:x}"}


@dataclass(frozen=True)
class PrivateKey:
    """The key pair; it decrypts what was encrypted under `public`."""

    public: PublicKey
    p: mpz = field(repr=False)
    q: mpz = field(repr=False)

    def __post_init__(self) -> None:
        if self.p * self.q != self.public.n or self.p == self.q:
            raise ValueError("n is not p·q")
        if not all(gmpy2.is_prime(prime, _PRIMALITY_ROUNDS) for prime in (self.p, self.q)):
            raise ValueError("p or q is not prime")
        if gmpy2.gcd(self.public.n, (self.p - 1) * (self.q - 1)) != 1:
            raise ValueError("p divides q − 1, or q divides p − 1")

    @cached_property
    def _phe(self) -> Any:
        phe = import_phe()
        return phe.PaillierPrivateKey(phe.PaillierPublicKey(int(self.public.n)), int(self.p), int(self.q))

    def decrypt(self, ciphertext: mpz) -> mpz:
        return mpz(self._phe.raw_decrypt(int(ciphertext)))

    def to_json(self) -> dict[str, str | int]:
        return {"scheme": SCHEME, "bits": self.public.bits, "p": f"{self.p:x}", "q": f"{self.q:x}"}


def private_key(bits: int, p: mpz, q: mpz) -> PrivateKey:
    """Make the key pair with these primes."""
    return PrivateKey(PublicKey(bits, p * q), p, q)


def generate_key(bits: int) -> PrivateKey:
    """Generate a key pair."""
    if bits < MIN_BITS or bits % 2:
        raise ValueError(f"a key needs an even number of bits, {MIN_BITS} or more, not {bits}")
    _, private = import_phe().generate_paillier_keypair(n_length=bits)
    return private_key(bits, mpz(private.p), mpz(private.q))


def import_phe() -> Any:
    """Import phe's module of Paillier; ImportError if phe is not installed."""
    from phe import paillier

    return paillier
