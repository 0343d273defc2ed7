"""Additively homomorphic encryption: what both schemes share, and the same on arrays of ciphertexts.

  Enc(a)·Enc(b) = Enc(a + b),   Enc(a)^s = Enc(a·s),   Enc(m) = raw(m)·blind(r)

An array of ciphertexts has the dtype `V<size>`: each element is one residue, the lowest byte first.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import gmpy2
import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from veilmeans.crypto.he import okamoto_uchiyama, paillier

Ciphers: TypeAlias = NDArray[np.void]
MOST_BITS = 1 << 14
"""Of n: a longer one is refused before anything is computed with it."""
_HEX = re.compile("[0-9a-f]+")


class PublicKey(Protocol):
    """Encrypts."""

    @property
    def scheme(self) -> str: ...
    @property
    def bits(self) -> int:
        """The length of n."""

    @property
    def modulus(self) -> mpz:
        """Ciphertexts are residues of it."""

    @property
    def capacity(self) -> int:
        """Plaintexts are 0 ≤ m < 2^capacity."""

    @property
    def size(self) -> int:
        """Bytes of a ciphertext."""

    def random_bits(self, growth: int) -> int:
        """Bits of the random number for a blind that hides a product whose randomness grew by `growth` bits."""

    def blind(self, random: mpz) -> mpz:
        """An encryption of zero. It does not depend on data, so it can be made beforehand."""

    def raw(self, plain: mpz) -> mpz:
        """An encryption of `plain` with no randomness: it must be blinded before it leaves."""

    def to_json(self) -> dict[str, str | int]: ...


class PrivateKey(Protocol):
    """Decrypts."""

    @property
    def public(self) -> PublicKey: ...
    def decrypt(self, cipher: mpz) -> mpz: ...
    def to_json(self) -> dict[str, str | int]:
        """All of the key: a secret."""


_GENERATE: dict[str, Callable[[int], PrivateKey]] = {
    okamoto_uchiyama.SCHEME: okamoto_uchiyama.generate,
    paillier.SCHEME: paillier.generate,
}
_PUBLIC: dict[str, tuple[Callable[..., PublicKey], tuple[str, ...]]] = {
    okamoto_uchiyama.SCHEME: (okamoto_uchiyama.PublicKey, ("n", "g")),
    paillier.SCHEME: (paillier.PublicKey, ("n",)),
}
_PRIVATE: dict[str, tuple[Callable[..., PrivateKey], tuple[str, ...]]] = {
    okamoto_uchiyama.SCHEME: (okamoto_uchiyama.private_key, ("p", "q", "t", "g")),
    paillier.SCHEME: (paillier.private_key, ("p", "q")),
}
SCHEMES = tuple(_GENERATE)


def generate(scheme: str, bits: int) -> PrivateKey:
    """A new key pair whose n has `bits` bits."""
    if scheme not in SCHEMES:
        raise ValueError(f"no scheme is called {scheme!r}: there are {', '.join(SCHEMES)}")
    return _GENERATE[scheme](bits)


def public_from_json(content: Mapping[str, Any]) -> PublicKey:
    """The inverse of `PublicKey.to_json`. What cannot be a key is refused with ValueError."""
    make, names = _PUBLIC[_scheme(content)]
    return make(**_numbers(content, names))


def private_from_json(content: Mapping[str, Any]) -> PrivateKey:
    """The inverse of `PrivateKey.to_json`. What cannot be a key is refused with ValueError."""
    make, names = _PRIVATE[_scheme(content)]
    return make(**_numbers(content, names))


def _scheme(content: Mapping[str, Any]) -> str:
    if not isinstance(content, Mapping) or content.get("scheme") not in SCHEMES:
        raise ValueError(f"a key names one of the schemes {', '.join(SCHEMES)}")
    return str(content["scheme"])


def _numbers(content: Mapping[str, Any], names: Sequence[str]) -> dict[str, mpz]:
    if set(content) != {"scheme", "bits", *names}:
        raise ValueError(f"a key of {content['scheme']} has the fields scheme, bits, {', '.join(names)}")
    bits = content["bits"]
    if type(bits) is not int or not 0 < bits <= MOST_BITS:
        raise ValueError(f"a key's bits are not an integer up to {MOST_BITS}")
    for name in names:
        digits = content[name]
        if not isinstance(digits, str) or len(digits) > -(-bits // 4) or not _HEX.fullmatch(digits):
            raise ValueError(f"a key's {name} is no hexadecimal number of at most {bits} bits")
    return {"bits": bits, **{name: mpz(content[name], 16) for name in names}}


def to_ciphers(values: Sequence[mpz], size: int) -> Ciphers:
    """Residues as an array with one axis."""
    return np.frombuffer(b"".join([value.to_bytes(size, "little") for value in values]), f"V{size}")


def from_ciphers(ciphers: Ciphers) -> list[mpz]:
    """The residues in an array of any shape, in C order."""
    data, size = ciphers.tobytes(), ciphers.dtype.itemsize
    return [mpz.from_bytes(data[start : start + size], "little") for start in range(0, len(data), size)]


def check_ciphers(key: PublicKey, values: Sequence[mpz]) -> None:
    """ValueError unless all are units mod the key's modulus. One gcd, of their product, tells it for all."""
    modulus, product = key.modulus, mpz(1)
    for value in values:
        if not 0 < value < modulus:
            raise ValueError("a ciphertext is zero or not below the modulus")
        product = product * value % modulus
    if gmpy2.gcd(product, modulus) != 1:
        raise ValueError("a ciphertext shares a factor with the modulus")


def blinds(key: PublicKey, randoms: NDArray[np.uint8]) -> Ciphers:
    """Encryptions of zero from random bytes (count, bytes), each row one number, the lowest byte first."""
    return to_ciphers([key.blind(mpz.from_bytes(row.tobytes(), "little")) for row in randoms], key.size)


def encrypt(key: PublicKey, plains: Sequence[mpz], blinds: Ciphers) -> Ciphers:
    """Each plaintext under its own blind."""
    modulus = key.modulus
    pairs = zip(plains, from_ciphers(blinds), strict=True)
    return to_ciphers([key.raw(plain) * blind % modulus for plain, blind in pairs], key.size)


def decrypt(key: PrivateKey, ciphers: Ciphers) -> list[mpz]:
    """The plaintexts in an array of any shape, in C order. A peer's ciphertexts go through `check_ciphers` first."""
    return [key.decrypt(cipher) for cipher in from_ciphers(ciphers)]
