"""Okamoto–Uchiyama encryption on gmpy2: additively homomorphic, plaintexts modulo a secret prime p.

  key      n = p²·q;  p − 1 = t·u with a prime t of 256 bits;  g of order p·t mod p² and a square mod q;  h = g^n mod n
  Enc(m)   g^m · h^r mod n,   r uniform of 256 bits or more
  Dec(c)   L(c^t mod p²) / L(g^t mod p²) mod p,   L(x) = (x − 1)/p
  Enc(a)·Enc(b) = Enc(a + b),   Enc(a)^s = Enc(a·s)

The exponent t in place of p − 1 makes decryption three times as fast, and h has order t mod p²; exponents r are twice
as long as the security level. g is a square mod q because everyone can compute the Jacobi symbol (c/n) = (c/q): it is
1 for every ciphertext, so it reveals nothing of m. A plaintext has at most `capacity` bits: the owner of the key checks
this and never sends back what depends on a decryption (Dec(Enc(m)) for m > p would reveal p).
"""

import secrets
import threading
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import ClassVar

import gmpy2
from gmpy2 import mpz

SCHEME = "okamoto-uchiyama"
SUBGROUP_BITS = 256
RANDOM_BITS = 256
MIN_BITS = 3 * (SUBGROUP_BITS + 64)
"""Shortest n in which p has room for t and a random cofactor; far too short to be safe."""
_WINDOW = 10
_PRIMALITY_ROUNDS = 40


@dataclass(frozen=True)
class PublicKey:
    """The public key: n and g."""

    bits: int
    n: mpz = field(repr=False)
    g: mpz = field(repr=False)
    scheme: ClassVar[str] = SCHEME

    def __post_init__(self) -> None:
        if self.bits < MIN_BITS or self.n.bit_length() != self.bits or gmpy2.is_even(self.n):
            raise ValueError(f"n is not an odd number of {self.bits} ≥ {MIN_BITS} bits")
        if not 1 < self.g < self.n - 1 or gmpy2.gcd(self.g, self.n) != 1:
            raise ValueError("g is not a unit mod n other than ±1")
        if gmpy2.jacobi(self.g, self.n) != 1:
            raise ValueError("g has the Jacobi symbol −1: ciphertexts would reveal the parity of their plaintexts")
        if self.h == 1:
            raise ValueError("h = g^n mod n is 1: ciphertexts would have no randomness")

    @property
    def modulus(self) -> mpz:
        return self.n

    @cached_property
    def h(self) -> mpz:
        return gmpy2.powmod(self.g, self.n, self.n)

    @property
    def capacity(self) -> int:
        """Bits of the largest plaintext, which is below p; the length of p is public."""
        return _prime_bits(self.bits) - 1

    @property
    def size(self) -> int:
        return -(-self.bits // 8)

    def random_bits(self, growth: int) -> int:
        """Bits of a fresh exponent of h that hides the exponent of a product, which is `growth` bits longer."""
        return RANDOM_BITS + growth

    def encrypt_zero(self, random: mpz) -> mpz:
        """Encrypt zero: h^random."""
        return _fixed_base(self, "h").power(random)

    def encrypt_unrandomised(self, plain: mpz) -> mpz:
        """Encrypt with no randomness: g^plain, for 0 ≤ plain < 2^capacity."""
        if not 0 <= plain < 1 << self.capacity:
            raise ValueError(f"a plaintext is negative or has more than {self.capacity} bits")
        return _fixed_base(self, "g").power(plain)

    def to_json(self) -> dict[str, str | int]:
        return {"scheme": SCHEME, "bits": self.bits, "n": f"{self.n:x}", "g": f"{self.g:x}"}


@dataclass(frozen=True)
class PrivateKey:
    """The key pair; it decrypts what was encrypted under `public`."""

    public: PublicKey
    p: mpz = field(repr=False)
    q: mpz = field(repr=False)
    t: mpz = field(repr=False)

    def __post_init__(self) -> None:
        p, q, t, square = self.p, self.q, self.t, self._square
        if square * q != self.public.n or p == q:
            raise ValueError("n is not p²·q")
        if p.bit_length() != _prime_bits(self.public.bits) or t.bit_length() != SUBGROUP_BITS or (p - 1) % t:
            raise ValueError("p or t has a wrong length, or t does not divide p − 1")
        if not all(gmpy2.is_prime(prime, _PRIMALITY_ROUNDS) for prime in (p, q, t)):
            raise ValueError("p, q or t is not prime")
        power = gmpy2.powmod(self.public.g, t, square)
        if power == 1 or power % p != 1 or gmpy2.powmod(self.public.g, p, square) == 1:
            raise ValueError("g does not have the order p·t mod p²")

    @cached_property
    def _square(self) -> mpz:
        return self.p * self.p

    @cached_property
    def _inverse(self) -> mpz:
        return gmpy2.invert(self._log(self.public.g), self.p)

    def _log(self, ciphertext: mpz) -> mpz:
        """L(c^t mod p²)."""
        return (gmpy2.powmod(ciphertext, self.t, self._square) - 1) // self.p

    def decrypt(self, ciphertext: mpz) -> mpz:
        return self._log(ciphertext) * self._inverse % self.p

    def to_json(self) -> dict[str, str | int]:
        secret = {"p": f"{self.p:x}", "q": f"{self.q:x}", "t": f"{self.t:x}"}
        return {"scheme": SCHEME, "bits": self.public.bits, "g": f"{self.public.g:x}", **secret}


def private_key(bits: int, p: mpz, q: mpz, t: mpz, g: mpz) -> PrivateKey:
    """Make the key pair with these numbers."""
    return PrivateKey(PublicKey(bits, p * p * q, g), p, q, t)


def generate_key(bits: int) -> PrivateKey:
    """Generate a key pair."""
    if bits < MIN_BITS:
        raise ValueError(f"a key needs {MIN_BITS} bits or more, not {bits}")
    size = _prime_bits(bits)
    t = _random_prime(SUBGROUP_BITS)
    p = _random_prime_with_factor(t, size)
    q = _random_prime(bits - 2 * size)
    return private_key(bits, p, q, t, _random_generator(p, q, t))


def _prime_bits(bits: int) -> int:
    """The length of p."""
    return bits // 3


def _random_prime(bits: int) -> mpz:
    """Draw a random prime of `bits` bits."""
    while True:
        candidate = _random_integer(bits) | 1
        if gmpy2.is_prime(candidate, _PRIMALITY_ROUNDS):
            return candidate


def _random_prime_with_factor(t: mpz, bits: int) -> mpz:
    """Draw a random prime p of `bits` bits with t | p − 1."""
    while True:
        top = _random_integer(bits)
        p = top - (top - 1) % (2 * t)
        if gmpy2.is_prime(p, _PRIMALITY_ROUNDS):
            return p


def _random_integer(bits: int) -> mpz:
    """Draw a random integer whose four highest bits are set: a product of three has its full length."""
    return mpz(secrets.randbits(bits)) | (mpz(15) << (bits - 4))


def _random_generator(p: mpz, q: mpz, t: mpz) -> mpz:
    """Draw a random g of order p·t mod p² that is a square mod q."""
    square = p * p
    while True:
        g_p = gmpy2.powmod(_random_unit(square), (p - 1) // t, square)
        if gmpy2.powmod(g_p, t, square) != 1 and gmpy2.powmod(g_p, p, square) != 1:
            g_q = _random_unit(q) ** 2 % q
            return g_p + square * ((g_q - g_p) * gmpy2.invert(square, q) % q)


def _random_unit(modulus: mpz) -> mpz:
    while True:
        unit = mpz(secrets.randbelow(int(modulus)))
        if unit > 1 and gmpy2.gcd(unit, modulus) == 1:
            return unit


class FixedBase:
    """Powers of one base: table[i][d] = base^(d·2^(w·i)), as long as the longest exponent so far."""

    def __init__(self, base: mpz, modulus: mpz) -> None:
        self._next_base, self._modulus = base, modulus
        self._table: list[list[mpz]] = []
        self._lock = threading.Lock()

    def power(self, exponent: mpz) -> mpz:
        """base^exponent, exponent ≥ 0."""
        if exponent < 0:
            raise ValueError("an exponent is negative")
        digits, modulus, result = gmpy2.unpack(exponent, _WINDOW), self._modulus, mpz(1)
        if len(digits) > len(self._table):
            self._grow(len(digits))
        for powers, digit in zip(self._table, digits, strict=False):
            result = result * powers[digit] % modulus
        return result

    def _grow(self, digits: int) -> None:
        with self._lock:
            while len(self._table) < digits:
                powers = [mpz(1)]
                for _ in range((1 << _WINDOW) - 1):
                    powers.append(powers[-1] * self._next_base % self._modulus)
                self._next_base = powers[-1] * self._next_base % self._modulus
                self._table.append(powers)


@lru_cache(maxsize=16)
def _fixed_base(key: PublicKey, base: str) -> FixedBase:
    """Powers of g or h, computed once per process and never pickled with the key."""
    return FixedBase(key.g if base == "g" else key.h, key.n)
