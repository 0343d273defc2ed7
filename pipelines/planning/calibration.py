"""A short calibration of this machine: what the operations of the cross products' engines cost here.

Each operation runs on real arrays, in the functions that a run uses, a few times, and the quickest counts: other
programs only ever add to it. (So would waiting, which a thread's own time leaves out.) What was measured is kept in a
file and used again by the same version on the same processor.
"""

import json
import os
import platform
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import thread_time
from typing import Any

import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray
from scipy.sparse import csr_array

from veilmeans import __version__
from veilmeans.crypto import prg, ring
from veilmeans.crypto import ring_matmul as products
from veilmeans.crypto.he import scheme as homomorphic
from veilmeans.crypto.he.multiexp import PowerTables, row_products
from veilmeans.crypto.he.packing import Slots, slots_for
from veilmeans.crypto.he.product_parameters import SchemeParameters
from veilmeans.io.storage.atomic_files import write_json
from veilmeans.pipelines.planning.engine_costs import Costs, Link
from veilmeans.schemas.address import Address

_LEAST, _MOST = 8, 256
"""Ciphertexts in one measurement,"""
_BLINDS = 0.02
"""and the seconds in which their blinds should be made."""
_NONZEROS = 16
"""Of a row of the sparse matrices that are measured."""
_GROWTH = 100
"""Bits by which the randomness of a mask is longer than that of a fresh ciphertext, about."""
_REPETITIONS, _ENOUGH = 7, 0.15
"""A measurement ends after so many repetitions or seconds."""


def calibrate(cipher: SchemeParameters, folder: Path, link: Link | None = None, keep: bool = True) -> Costs:
    """The costs on this machine, from `folder` if they were measured before; what is measured now is kept there."""
    link = link or Link()
    file, here = folder / f"costs-{cipher.scheme}-{cipher.bits}.json", machine()
    measured = {"rate": link.rate, "round_trip": link.round_trip}
    with suppress(OSError, ValueError, KeyError, TypeError):
        kept = json.loads(file.read_text())
        if kept["machine"] == here:
            return Costs.from_json({**kept["seconds"], **measured})
    seconds = {**_encrypted(cipher), **_plain()}
    if keep:
        write_json(file, {"machine": here, "seconds": seconds})
    return Costs.from_json({**seconds, **measured})


def machine() -> dict[str, str | int]:
    """What a measurement depends on."""
    return {"version": __version__, "processors": os.cpu_count() or 1, "processor": _processor()}


def _processor() -> str:
    with suppress(OSError):
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
        if found:
            return found[1]
    return platform.processor() or platform.machine()


def _encrypted(cipher: SchemeParameters) -> dict[str, float]:
    """Of operations on ciphertexts, under a new key."""
    key = homomorphic.generate(cipher.scheme, cipher.bits)
    public, slots = key.public, slots_for(cipher.capacity, 100, 60, cipher.capacity)
    count = _ciphers(public)
    values = _random("values", (count, slots.count))
    short, long = (_random("r", (count, public.random_bits(bits) // 8), np.uint8) for bits in (0, _GROWTH))
    blinds = homomorphic.blinds(public, short)
    ciphers = homomorphic.encrypt(public, slots.pack(values), blinds)
    numbers = homomorphic.from_ciphers(ciphers)
    hot, tables = _sparse(256, count, np.int64), PowerTables(numbers, public.modulus, 1, None)
    return {
        "multiply": seconds_of(lambda: row_products(hot, tables), hot.nnz),
        "raw": seconds_of(lambda: homomorphic.encrypt(public, slots.pack(values), blinds), values.size),
        "blind": seconds_of(lambda: homomorphic.blinds(public, short), count),
        "mask": seconds_of(lambda: _masks(public, slots, long), count),
        "decrypt": seconds_of(lambda: slots.unpack(homomorphic.decrypt(key, ciphers)), count),
        "convert": seconds_of(lambda: _there_and_back(numbers, public.size), 2 * count),
    }


def _ciphers(key: homomorphic.PublicKey) -> int:
    """So many ciphertexts that tables of powers do not stay in a cache, and fewer where a blind takes long."""
    random = _random("r", (1, key.random_bits(0) // 8), np.uint8)
    return int(min(_MOST, max(_LEAST, _BLINDS / seconds_of(lambda: homomorphic.blinds(key, random), 1))))


def _masks(key: homomorphic.PublicKey, slots: Slots, randoms: NDArray[np.uint8]) -> None:
    plains, _ = slots.masks(_random("masks", (len(randoms), slots.count, slots.mask_bytes), np.uint8))
    homomorphic.encrypt(key, plains, homomorphic.blinds(key, randoms))


def _there_and_back(numbers: list[mpz], size: int) -> None:
    homomorphic.from_ciphers(homomorphic.to_ciphers(numbers, size))


def _plain() -> dict[str, float]:
    """Of operations on words."""
    rows, inner, columns = 1 << 12, 64, 8
    x, y = _random("x", (rows, inner)), _random("y", (inner, columns))
    z = _sparse(rows, inner, ring.DTYPE)
    return {
        "dense": seconds_of(lambda: products.matmul(x, y), rows * inner * columns),
        "sparse": seconds_of(lambda: products.sparse_matmul(z, y), z.nnz * columns),
        "word": seconds_of(lambda: _random("w", (1 << 18,)), 1 << 18),
    }


def _sparse(rows: int, columns: int, dtype: Any) -> Any:
    """Ones at random places."""
    places = _random("places", (rows, _NONZEROS)) % ring.DTYPE(columns)
    starts = np.arange(rows + 1) * _NONZEROS
    return csr_array((np.ones(places.size, dtype), places.ravel().astype(np.int64), starts), (rows, columns))


def _random(label: str, shape: tuple[int, ...], dtype: Any = ring.DTYPE) -> NDArray[Any]:
    """Operands; they need not be secret."""
    return prg.uniform(bytes(prg.SEED_SIZE), Address("calibrate", 0, "costs", 0), label, shape, dtype)


def seconds_of(work: Callable[[], Any], units: int) -> float:
    """Of one unit: the quickest of a few repetitions, after one in which tables are made and loops compiled."""
    work()
    times: list[float] = []
    while len(times) < _REPETITIONS and sum(times) < _ENOUGH:
        start = thread_time()
        work()
        times.append(thread_time() - start)
    return min(times) / units
