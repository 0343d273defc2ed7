"""Values that tests keep fixed: costs of operations, keys."""

import hashlib
from functools import cache

import gmpy2
import pytest
from gmpy2 import mpz

from veilmeans.crypto.he.scheme import PrivateKey, private_from_json
from veilmeans.pipelines.planning import calibration as calibration
from veilmeans.pipelines.planning import engine_selection as settle
from veilmeans.pipelines.planning import job_plan as plan_kmeans
from veilmeans.pipelines.planning.engine_costs import Costs, Link
from veilmeans.pipelines.planning.pace import Pace

PACE = Pace(message=1e-3, byte=2e-9, local=2e-8, barrier=0.02, pipeline=0.1)
SECONDS = {
    "multiply": 1.8e-6,
    "raw": 25e-6,
    "blind": 60e-6,
    "mask": 280e-6,
    "decrypt": 230e-6,
    "convert": 0.6e-6,
    "dense": 0.25e-9,
    "sparse": 1e-9,
    "word": 1.5e-9,
}


def fix_costs(patch: pytest.MonkeyPatch) -> None:
    """Nothing is measured."""
    patch.setattr(settle, "calibrate", _costs)
    patch.setattr(plan_kmeans, "measure_pace", lambda *_: PACE)


def _costs(cipher: object, folder: object, link: Link | None = None, keep: bool = True) -> Costs:
    del cipher, folder, keep
    link = link or Link()
    return Costs(**SECONDS, rate=link.rate, round_trip=link.round_trip)


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
    return private_from_json({"scheme": scheme, "bits": bits, **{name: f"{each:x}" for name, each in numbers.items()}})


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


COSTS = Costs(
    multiply=1.8e-6,
    raw=25e-6,
    blind=60e-6,
    mask=280e-6,
    decrypt=230e-6,
    convert=0.6e-6,
    dense=0.25e-9,
    sparse=1e-9,
    word=1.5e-9,
    rate=125e6,
    round_trip=0.0005,
)
