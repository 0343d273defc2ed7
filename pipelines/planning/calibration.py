"""Calibration: measure the seconds of the operations of the product engines on this machine, and keep them in a file.

Each operation runs on real arrays, in the functions that a run uses, a few times, and the quickest counts: other
programs only ever add time. (So would waiting, which a thread's own time leaves out.) The file is used again by the
same version on the same processor.
"""

import os
import platform
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from time import thread_time
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from veilmeans import __version__
from veilmeans.crypto import prg, ring, ring_matmul
from veilmeans.crypto.he import scheme
from veilmeans.crypto.he.multiexp import PowerTables, row_products
from veilmeans.crypto.he.packing import fit_slots
from veilmeans.crypto.he.product_parameters import SchemeParameters
from veilmeans.io.exchange.link_shaping import ASSUMED_LINK, Link
from veilmeans.io.files.atomic_files import parse_json, write_json
from veilmeans.io.storage.he_keyring import check_scheme_installed
from veilmeans.pipelines.planning.engine_costs import OperationCosts
from veilmeans.schemas.address import Address

if TYPE_CHECKING:
    pass

_FEWEST, _MOST = 8, 256  # ciphertexts in one measurement
_BLINDING_SECONDS = 0.02  # time in which their blinds should be made
_NONZEROS = 16  # nonzeros of a row of the sparse matrices that are measured
_REPETITIONS, _ENOUGH_SECONDS = 7, 0.15  # limits of a measurement


def measure_operations(parameters: SchemeParameters) -> dict[str, float]:
    """Measure the seconds of each operation of `OperationCosts`."""
    return _measure_ciphertexts(parameters) | _measure_words()


def calibrate(
    parameters: SchemeParameters,
    file: Path,
    link: Link = ASSUMED_LINK,
    keep: bool = True,
    measure: Callable[[SchemeParameters], dict[str, float]] = measure_operations,
) -> OperationCosts:
    """Read the costs of this machine from `file`, or measure them, and keep them there if `keep`."""
    machine = {"version": __version__, "processors": os.cpu_count() or 1, "processor": _processor()}
    with suppress(OSError, ValueError, KeyError, TypeError):
        stored = parse_json(file.read_text())
        if stored["machine"] == machine:
            return OperationCosts.from_json(stored["seconds"] | asdict(link))
    seconds = measure(parameters)
    if keep:
        write_json(file, {"machine": machine, "seconds": seconds})
    return OperationCosts.from_json(seconds | asdict(link))


def _processor() -> str:
    with suppress(OSError):
        model = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
        if model:
            return model[1]
    return platform.processor() or platform.machine()


def _measure_ciphertexts(parameters: SchemeParameters) -> dict[str, float]:
    """Measure operations on ciphertexts, under a new key."""
    check_scheme_installed(parameters.scheme)
    key = scheme.generate_key(parameters.scheme, parameters.bits)
    public, slots = key.public, fit_slots(parameters.capacity, 100, 60, parameters.capacity)
    count = _ciphertext_count(public)
    values = _random("values", (count, slots.count))
    random = _random("r", (count, public.random_bits(0) // 8), np.uint8)
    blinds = scheme.encrypt_zeros(public, random)
    ciphertexts = scheme.encrypt(public, slots.pack(values), blinds)
    residues = scheme.from_ciphertexts(ciphertexts)
    one_hot, tables = _sparse(256, count, np.int64), PowerTables(residues, public.modulus, 1, None)
    return {
        "multiplication": _seconds_of(lambda: row_products(one_hot, tables), one_hot.nnz),
        "packed_value": _seconds_of(lambda: scheme.encrypt(public, slots.pack(values), blinds), values.size),
        "decryption": _seconds_of(lambda: slots.unpack(scheme.decrypt(key, ciphertexts)), count),
        "blinding": _seconds_of(lambda: scheme.encrypt_zeros(public, random), count),
        "conversion": _seconds_of(
            lambda: scheme.from_ciphertexts(scheme.to_ciphertexts(residues, public.size)), 2 * count
        ),
    }


def _ciphertext_count(key: scheme.PublicKey) -> int:
    """Count as many ciphertexts as keep tables of powers out of a cache, but fewer if a blind takes long."""
    random = _random("r", (1, key.random_bits(0) // 8), np.uint8)
    blind_seconds = _seconds_of(lambda: scheme.encrypt_zeros(key, random), 1)
    return int(min(_MOST, max(_FEWEST, _BLINDING_SECONDS / blind_seconds)))


def _measure_words() -> dict[str, float]:
    """Measure operations on words of 8 bytes."""
    rows, inner, columns = 1 << 12, 64, 8
    x, y = _random("x", (rows, inner)), _random("y", (inner, columns))
    z = _sparse(rows, inner, ring.DTYPE)
    return {
        "dense_multiply_add": _seconds_of(lambda: ring_matmul.matmul(x, y), rows * inner * columns),
        "sparse_multiply_add": _seconds_of(lambda: ring_matmul.sparse_matmul(z, y), z.nnz * columns),
        "word": _seconds_of(lambda: _random("w", (1 << 18,)), 1 << 18),
    }


def _sparse(rows: int, columns: int, dtype: Any) -> Any:
    """Make a CSR matrix of ones in random columns."""
    indices = _random("places", (rows, _NONZEROS)) % ring.DTYPE(columns)
    starts = np.arange(rows + 1) * _NONZEROS
    from scipy.sparse import csr_array

    return csr_array((np.ones(indices.size, dtype), indices.ravel().astype(np.int64), starts), (rows, columns))


def _random(label: str, shape: tuple[int, ...], dtype: Any = ring.DTYPE) -> NDArray[Any]:
    """Operands, which need not be secret."""
    return prg.uniform(bytes(prg.SEED_SIZE), Address("calibrate", 0, "costs", 0), label, shape, dtype)


def _seconds_of(work: Callable[[], Any], units: int) -> float:
    """Measure the seconds of one unit: the quickest of a few repetitions, after one that makes tables and compiles."""
    work()
    times: list[float] = []
    while len(times) < _REPETITIONS and sum(times) < _ENOUGH_SECONDS:
        start = thread_time()
        work()
        times.append(thread_time() - start)
    return min(times) / units
