"""Additively homomorphic encryption: the interface of both schemes, and operations on arrays of ciphertexts.

  Enc(a)·Enc(b) = Enc(a + b),   Enc(a)^s = Enc(a·s),   Enc(m; r) = Enc(m; no randomness)·Enc(0; r)

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

Ciphertexts: TypeAlias = NDArray[np.void]
MAX_BITS = 1 << 14
"""Longest n: a longer one is refused before anything is computed with it."""
_HEX = re.compile("[0-9a-f]+")


class PublicKey(Protocol):
    """The key that encrypts."""

    @property
    def scheme(self) -> str:
        """The scheme's name."""

    @property
    def bits(self) -> int:
        """The length of n."""

    @property
    def modulus(self) -> mpz:
        """Ciphertexts are residues mod this number."""

    @property
    def capacity(self) -> int:
        """Plaintexts are 0 ≤ m < 2^capacity."""

    @property
    def size(self) -> int:
        """Bytes of a ciphertext."""

    def random_bits(self, growth: int) -> int:
        """Bits of the random number for an encryption that hides a product whose randomness grew by `growth` bits."""

    def encrypt_zero(self, random: mpz) -> mpz:
        """Encrypt zero with this random number. This does not depend on data, so it can be done offline."""

    def encrypt_unrandomised(self, plain: mpz) -> mpz:
        """Encrypt `plain` with no randomness: multiply it by an encryption of zero before it is sent."""

    def to_json(self) -> dict[str, str | int]:
        """The key as JSON."""


class PrivateKey(Protocol):
    """The key that decrypts."""

    @property
    def public(self) -> PublicKey:
        """The public half."""

    def decrypt(self, ciphertext: mpz) -> mpz:
        """Decrypt one ciphertext."""

    def to_json(self) -> dict[str, str | int]:
        """The key pair as JSON: a secret."""


_GENERATE: dict[str, Callable[[int], PrivateKey]] = {
    okamoto_uchiyama.SCHEME: okamoto_uchiyama.generate_key,
    paillier.SCHEME: paillier.generate_key,
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


def check_installed(scheme: str) -> None:
    """Raise ImportError if the scheme needs a package that is not installed."""
    if scheme == paillier.SCHEME:
        paillier.import_phe()


def generate_key(scheme: str, bits: int) -> PrivateKey:
    """Generate a key pair whose n has `bits` bits."""
    if scheme not in SCHEMES:
        raise ValueError(f"no scheme is called {scheme!r}: there are {', '.join(SCHEMES)}")
    return _GENERATE[scheme](bits)


def public_key_from_json(content: Mapping[str, Any]) -> PublicKey:
    """Read what `PublicKey.to_json` wrote; ValueError for what cannot be a key."""
    make, names = _PUBLIC[_scheme_name(content)]
    return make(**_key_numbers(content, names))


def private_key_from_json(content: Mapping[str, Any]) -> PrivateKey:
    """Read what `PrivateKey.to_json` wrote; ValueError for what cannot be a key."""
    make, names = _PRIVATE[_scheme_name(content)]
    return make(**_key_numbers(content, names))


def _scheme_name(content: Mapping[str, Any]) -> str:
    if not isinstance(content, Mapping) or content.get("scheme") not in SCHEMES:
        raise ValueError(f"a key names one of the schemes {', '.join(SCHEMES)}")
    return str(content["scheme"])


def _key_numbers(content: Mapping[str, Any], names: Sequence[str]) -> dict[str, mpz]:
    if set(content) != {"scheme", "bits", *names}:
        raise ValueError(f"a key of {content['scheme']} has the fields scheme, bits, {', '.join(names)}")
    bits = content["bits"]
    if type(bits) is not int or not 0 < bits <= MAX_BITS:
        raise ValueError(f"a key's bits are not an integer up to {MAX_BITS}")
    for name in names:
        digits = content[name]
        if not isinstance(digits, str) or len(digits) > -(-bits // 4) or not _HEX.fullmatch(digits):
            raise ValueError(f"a key's {name} is not a hexadecimal number of at most {bits} bits")
    return {"bits": bits, **{name: mpz(content[name], 16) for name in names}}


def to_ciphertexts(values: Sequence[mpz], size: int) -> Ciphertexts:
    """Write residues to an array with one axis."""
    return np.frombuffer(b"".join([value.to_bytes(size, "little") for value in values]), f"V{size}")


def from_ciphertexts(ciphertexts: Ciphertexts) -> list[mpz]:
    """Read the residues of an array of any shape, in C order."""
    data, size = ciphertexts.tobytes(), ciphertexts.dtype.itemsize
    return [mpz.from_bytes(data[start : start + size], "little") for start in range(0, len(data), size)]


def check_ciphertexts(key: PublicKey, values: Sequence[mpz]) -> None:
    """Raise ValueError unless all are units mod the key's modulus. One gcd, of their product, is enough."""
    modulus, product = key.modulus, mpz(1)
    for value in values:
        if not 0 < value < modulus:
            raise ValueError("a ciphertext is zero or not below the modulus")
        product = product * value % modulus
    if gmpy2.gcd(product, modulus) != 1:
        raise ValueError("a ciphertext shares a factor with the modulus")


def encrypt_zeros(key: PublicKey, randoms: NDArray[np.uint8]) -> Ciphertexts:
    """Encrypt zeros with random bytes (count, bytes), each row one number, the lowest byte first."""
    return to_ciphertexts([key.encrypt_zero(mpz.from_bytes(row.tobytes(), "little")) for row in randoms], key.size)


def encrypt(key: PublicKey, plains: Sequence[mpz], zeros: Ciphertexts) -> Ciphertexts:
    """Encrypt each plaintext with the randomness of its own encryption of zero."""
    modulus = key.modulus
    pairs = zip(plains, from_ciphertexts(zeros), strict=True)
    return to_ciphertexts([key.encrypt_unrandomised(plain) * zero % modulus for plain, zero in pairs], key.size)


def decrypt(key: PrivateKey, ciphertexts: Ciphertexts) -> list[mpz]:
    """Decrypt an array of any shape, in C order. Call `check_ciphertexts` before on what a peer sent."""
    return [key.decrypt(ciphertext) for ciphertext in from_ciphertexts(ciphertexts)]
