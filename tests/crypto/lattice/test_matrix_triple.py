"""U·V mod 2^64 from lattices, against Python's integers: random, extreme and adversarial values, all shapes."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.lattice_runs import OWNER, PEER, PUBLIC, centred, edges, integers, multiply, residues, words
from veilmeans.crypto.lattice import operand as operands
from veilmeans.crypto.lattice import sampling
from veilmeans.crypto.lattice.bit_packing import pack
from veilmeans.crypto.lattice.kernel import Words
from veilmeans.crypto.lattice.matrix_triple import open_response, respond
from veilmeans.crypto.lattice.ntt import transform
from veilmeans.crypto.lattice.operand import MalformedMessageError, encrypt_operand
from veilmeans.crypto.lattice.parameters import DEGREE, MODULUS, NOISE, PRIMES, RESIDUE_BITS
from veilmeans.crypto.lattice.product_shape import ProductShape
from veilmeans.crypto.lattice.rlwe import add_product
from veilmeans.schemas.arrays import nbytes, spec_of

SHAPES = [(1, 1, 1), (1, 3, 2), (300, 3, 5), (DEGREE, 1, 2), (DEGREE + 1, 2, 1), (2 * DEGREE + 5, 1, 3), (7, 70, 1)]
"""Rows and columns of U, columns of V: one of each, full and several blocks, more columns than are added up at once."""
both = pytest.mark.parametrize("transposed", [False, True], ids=["distance", "update"])


def check(u: Words, v: Words, share: Words, transposed: bool) -> None:
    product = multiply(u, v, share, transposed)
    assert np.array_equal(product.owner_share + share, product.expected)


def sizes(rows: int, columns: int, outputs: int, transposed: bool) -> tuple[tuple[int, int], ...]:
    """The shapes of U, V and W."""
    return (rows, columns), (rows if transposed else columns, outputs), (columns if transposed else rows, outputs)


@both
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shares_add_up_to_the_product(shape: tuple[int, int, int], transposed: bool) -> None:
    u, v, w = sizes(*shape, transposed)
    check(words(*u, seed=1), words(*v, seed=2), words(*w, seed=3), transposed)
    check(edges(*u, seed=1), edges(*v, seed=2), edges(*w, seed=3), transposed)


@both
@pytest.mark.parametrize("value", [0, 1, 2**63, 2**64 - 1], ids=["0", "1", "2^63", "2^64 − 1"])
def test_extremes_everywhere(value: int, transposed: bool) -> None:
    matrices = [np.full(shape, value, np.uint64) for shape in sizes(DEGREE + 3, 2, 2, transposed)]
    check(*matrices, transposed)


@both
@settings(max_examples=15, deadline=None)
@given(
    st.one_of(st.integers(1, 40), st.integers(DEGREE - 1, DEGREE + 1)),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(0, 2**32 - 1),
    st.booleans(),
)
def test_any_shape(transposed: bool, rows: int, columns: int, outputs: int, seed: int, extreme: bool) -> None:
    draw = edges if extreme else words
    u, v, w = (draw(*shape, seed=seed + i) for i, shape in enumerate(sizes(rows, columns, outputs, transposed)))
    check(u, v, w, transposed)


@both
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("flood", [0, 2**64 - 1], ids=["low", "high"])
def test_the_largest_noise_and_flood_change_no_result(
    transposed: bool, sign: int, flood: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors of 21 everywhere with one sign, secrets and r of ones, V = −2^63: all noise adds up, to either side."""
    largest, ones = residues([sign * NOISE] * DEGREE), residues([1] * DEGREE)
    honest = sampling.words

    def words_or_flood(seed: bytes, label: str, count: int) -> Words:
        return np.full(count, flood, np.uint64) if label.startswith("flood") else honest(seed, label, count)

    monkeypatch.setattr(sampling, "noise", lambda *_: largest.copy())
    monkeypatch.setattr(sampling, "ternary", lambda _seed, _label, primes=4: ones[:primes].copy())
    monkeypatch.setattr(sampling, "words", words_or_flood)
    u, v, w = sizes(DEGREE, 3, 2, transposed)
    check(words(*u), np.full(v, 2**63, np.uint64), words(*w), transposed)
    check(edges(*u), words(*v), edges(*w), transposed)


@both
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sizes_follow_from_shapes(shape: tuple[int, int, int], transposed: bool) -> None:
    product = multiply(*(words(*each) for each in sizes(*shape, transposed)), transposed)
    assert spec_of(product.operand) == product.shape.operand_spec()
    assert spec_of(product.response) == product.shape.response_spec()
    assert nbytes(product.operand) == product.shape.operand_bytes
    assert nbytes(product.response) == product.shape.response_bytes
    results, outputs = product.shape.results, shape[2]
    assert product.shape.response_bytes == outputs * (10 * DEGREE + 8 * results) + -(-outputs * results // 32) * 8


@both
def test_no_columns_of_v_make_empty_results(transposed: bool) -> None:
    product = multiply(*(words(*each) for each in sizes(5, 2, 0, transposed)), transposed)
    assert product.owner_share.shape == product.share.shape
    assert product.shape.response_bytes == 0


@both
def test_retries_send_the_same_bytes(transposed: bool) -> None:
    matrices = [words(*each) for each in sizes(9, 2, 2, transposed)]
    first, second = multiply(*matrices, transposed), multiply(*matrices, transposed)
    for name, array in {**first.operand, **first.response}.items():
        assert np.array_equal(array, {**second.operand, **second.response}[name]), name


@both
def test_every_seed_matters(transposed: bool) -> None:
    matrices = [words(*each) for each in sizes(9, 2, 2, transposed)]
    first = multiply(*matrices, transposed)
    other_owner = multiply(*matrices, transposed, owner=b"another")
    other_peer = multiply(*matrices, transposed, peer=b"another")
    other_masks = multiply(*matrices, transposed, public=b"another")
    assert (first.operand["operand"] != other_owner.operand["operand"]).mean() > 0.99
    assert (first.operand["operand"] != other_masks.operand["operand"]).mean() > 0.99
    assert (first.response["c1"] != other_peer.response["c1"]).all()
    assert (first.response["c1"] != other_masks.response["c1"]).all()


@both
def test_every_body_and_key_has_an_error_of_its_own(transposed: bool) -> None:
    """body + a·s − ⌊q·u/2^64⌉ is what hides s and u: small, spread as the parameters say, and never the same twice."""
    u = words(40, 2, seed=1)
    shape, errors = ProductShape(40, 2, 1, transposed), []
    packed = encrypt_operand(shape, u, OWNER, PUBLIC)["operand"]
    for i, c in np.ndindex(packed.shape[:2]):
        phase = operands.unpack_body(packed[i, c])
        add_product(operands.mask(PUBLIC, c), operands.secret(OWNER, i), phase)
        column = None if c == shape.masks else i if transposed else c
        plain = [0] * DEGREE if column is None else u[:, column].tolist() + [0] * (DEGREE - len(u))
        encoded = ((x * MODULUS + 2**63) >> 64 for x in plain)
        errors.append([centred(x - y) for x, y in zip(integers(phase), encoded, strict=True)])
    for error in errors:
        assert max(map(abs, error)) <= NOISE
        assert 3.0 < np.std(error) < 3.5
    assert all(abs(np.corrcoef(errors)[i, j]) < 0.1 for i in range(len(errors)) for j in range(i))


def test_read_only_messages_as_arrow_returns_them() -> None:
    u, v, share = words(5, 2, seed=1), words(2, 3, seed=2), words(5, 3, seed=3)
    shape = ProductShape(5, 2, 3, False)
    operand = encrypt_operand(shape, u, OWNER, PUBLIC)
    for array in (u, v, share, *operand.values()):
        array.flags.writeable = False
    response = respond(shape, operand, v, share, PEER, PUBLIC)
    for array in response.values():
        array.flags.writeable = False
    assert np.array_equal(open_response(shape, response, OWNER) + share, u @ v)


@both
def test_operands_of_other_shapes_are_refused(transposed: bool) -> None:
    product = multiply(*(words(*each) for each in sizes(5, 2, 2, transposed)), transposed)
    good = product.operand["operand"]
    for bad in (good[:, :-1], good[..., :-1], good.astype(np.int64), np.concatenate([good, good])):
        with pytest.raises(MalformedMessageError, match="encrypted operand"):
            respond(product.shape, {"operand": bad}, product.v, product.share, PEER, PUBLIC)
    with pytest.raises(MalformedMessageError):
        respond(product.shape, {}, product.v, product.share, PEER, PUBLIC)


@both
@pytest.mark.parametrize("prime", range(4))
@pytest.mark.parametrize("at", ["first body", "key"])
def test_residues_out_of_range_are_refused(transposed: bool, prime: int, at: str) -> None:
    product = multiply(*(words(*each) for each in sizes(5, 2, 2, transposed)), transposed)
    body = np.zeros((4, DEGREE), np.uint64)
    body[prime, 17] = PRIMES[prime]
    bad = product.operand["operand"].copy()
    bad[-1, 0 if at == "first body" else -1] = pack(body, RESIDUE_BITS)
    with pytest.raises(MalformedMessageError, match="residue"):
        respond(product.shape, {"operand": bad}, product.v, product.share, PEER, PUBLIC)


@both
@pytest.mark.parametrize("name", ["c1", "c1.tail", "c0", "c0.tail"])
def test_responses_of_other_shapes_are_refused(transposed: bool, name: str) -> None:
    product = multiply(*(words(*each) for each in sizes(5, 2, 2, transposed)), transposed)
    array = product.response[name]
    for bad in (array[..., :-1], array.astype(np.int32), np.concatenate([array, array])):
        with pytest.raises(MalformedMessageError, match="response"):
            open_response(product.shape, {**product.response, name: bad}, OWNER)
    with pytest.raises(MalformedMessageError):
        open_response(product.shape, {k: v for k, v in product.response.items() if k != name}, OWNER)


def test_secrets_of_the_opening_are_those_of_the_operand() -> None:
    """The owner keeps no secret polynomial: both halves expand it, the opening modulo two primes."""
    whole, half = operands.secret(OWNER, 1), operands.secret(OWNER, 1, 2)
    assert np.array_equal(whole[:2], half)
    assert np.array_equal(transform(sampling.ternary(OWNER, "secret 1")), whole)


@pytest.mark.processes
def test_nothing_is_compiled_at_import() -> None:
    program = (
        "import numba.core.dispatcher as dispatcher\n"
        "compiled = []\n"
        "dispatcher.Dispatcher.compile = lambda self, *_: compiled.append(self)\n"
        "import veilmeans.crypto.lattice.matrix_triple, veilmeans.crypto.lattice.lattice_seeds\n"
        "assert not compiled\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.processes
def test_plans_import_no_compiler() -> None:
    program = (
        "import sys, veilmeans.crypto.lattice.product_shape\n"
        "assert 'numba' not in sys.modules and 'llvmlite' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.processes
def test_kernels_work_where_no_cache_can_be_written(tmp_path: Path) -> None:
    program = (
        "import numba.core.caching as caching\n"
        "caching.CacheImpl._locator_classes = []\n"
        "import numpy as np\n"
        "from veilmeans.crypto.lattice.bit_packing import pack, unpack\n"
        "x = np.arange(100, dtype=np.uint64)\n"
        "assert (unpack(pack(x, 54), 54, 100) == x).all()\n"
    )
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "none")}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)
