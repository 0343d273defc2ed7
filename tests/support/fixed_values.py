"""Fixed values for tests: costs of operations, and keys."""

import hashlib
from functools import cache

import gmpy2
import pytest
from gmpy2 import mpz

from veilmeans.crypto.he.scheme import PrivateKey, private_key_from_json
from veilmeans.io.exchange.link_shaping import ASSUMED_LINK, Link
from veilmeans.pipelines.planning import engine_selection
from veilmeans.pipelines.planning.engine_costs import OperationCosts

SECONDS = {
    "multiplication": 1.8e-6,
    "packed_value": 25e-6,
    "decryption": 230e-6,
    "conversion": 0.6e-6,
    "blinding": 60e-6,
    "dense_multiply_add": 0.25e-9,
    "sparse_multiply_add": 1e-9,
    "word": 1.5e-9,
}


def costs_on(link: Link) -> OperationCosts:
    """The fixed costs of operations, with this link."""
    return OperationCosts(**SECONDS, rate=link.rate, round_trip=link.round_trip)


COSTS = costs_on(ASSUMED_LINK)


def fix_costs(patch: pytest.MonkeyPatch) -> None:
    """Let engine selection take fixed costs instead of measured ones."""
    patch.setattr(engine_selection, "calibrate", lambda _parameters, _file, link, _keep: costs_on(link))


SCHEMES = ["okamoto-uchiyama", "paillier"]


def number(label: str, bits: int) -> mpz:
    """A number of at most `bits` bits."""
    return mpz.from_bytes(hashlib.shake_256(label.encode()).digest(-(-bits // 8)), "little") >> (-bits % 8)


def prime(label: str, bits: int) -> mpz:
    """A prime with its four highest bits set."""
    return gmpy2.next_prime(number(label, bits) | (mpz(15) << (bits - 4)))


@cache
def fixed_key(scheme: str, bits: int = 1024) -> PrivateKey:
    """The key pair of this scheme and length."""
    numbers = _paillier(bits) if scheme == "paillier" else _okamoto_uchiyama(bits)
    return private_key_from_json(
        {"scheme": scheme, "bits": bits, **{name: f"{each:x}" for name, each in numbers.items()}}
    )


def _paillier(bits: int) -> dict[str, mpz]:
    return {name: prime(name, bits // 2) for name in "pq"}


def _okamoto_uchiyama(bits: int) -> dict[str, mpz]:
    """p = t·u + 1, and g from its residues mod p² and q."""
    size = bits // 3
    t, q = prime("t", 256), prime("q", bits - 2 * size)
    u = number("u", size - 256) | (mpz(15) << (size - 260))
    u -= u % 2
    while not gmpy2.is_prime(t * u + 1):
        u += 2
    p = t * u + 1
    g_p, g_q = pow(number("g", bits), u, p * p), number("g", bits) ** 2 % q
    g = g_p + p * p * ((g_q - g_p) * gmpy2.invert(p * p, q) % q)
    return {"p": p, "q": q, "t": t, "g": g}
