"""The search of a shared place finds what it looks for, however that is written."""

import base64
import gzip
import json
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.object_search import planted_secrets, search
from support.worlds import blobs
from veilmeans.crypto import fixed_point as fixed
from veilmeans.io.files.shared_files import seal
from veilmeans.schemas.arrays import Real, to_stream

ROWS = blobs(40, 3)
SCALED = (ROWS - ROWS.min(axis=0)) / np.ptp(ROWS, axis=0)
RNG = np.random.default_rng(8)
SHARE = RNG.integers(0, 2**64, 30, np.uint64)
SEED = RNG.bytes(32)
SECRETS = planted_secrets(ROWS, SCALED, [SHARE], [SEED], ["a category"])
OTHER = RNG.bytes(5000)


def arrow(rows: Real, compression: str | None) -> bytes:
    sink = pa.BufferOutputStream()
    table = pa.table({"x": rows[:, 0], "u": fixed.encode(SCALED[:, 1])})
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def parquet(compression: str) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"x": ROWS[:, 0]}), sink, compression=compression)
    return sink.getvalue().to_pybytes()


def packed(codec: str, data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as target:
        target.write(data)
    return sink.getvalue().to_pybytes()


FLOATS, WORDS = ROWS.tobytes(), fixed.encode(SCALED).tobytes()
TEXT = "\n".join(",".join(map(repr, row)) for row in ROWS.tolist()).encode()
WRITTEN: dict[str, Callable[[], bytes]] = {
    "float64, little endian": lambda: FLOATS[24:48],
    "float64, big endian": lambda: ROWS.astype(">f8").tobytes()[:24],
    "fixed point": lambda: WORDS[8:64],
    "fixed point, negative": lambda: (-fixed.encode(SCALED)).tobytes()[8:64],
    "text": lambda: TEXT,
    "rounded text": lambda: ";".join(f"{value:.6f}" for value in ROWS[0]).encode(),
    "JSON": lambda: json.dumps(ROWS[0].tolist()).encode(),
    "Arrow": lambda: arrow(ROWS, None),
    "Arrow, zstd": lambda: arrow(ROWS, "zstd"),
    "Arrow, lz4": lambda: arrow(ROWS, "lz4"),
    "a tagged file": lambda: bytes(64) + to_stream({"x": ROWS}).to_pybytes(),
    "Parquet": lambda: parquet("none"),
    "Parquet, snappy": lambda: parquet("snappy"),
    "Parquet, zstd": lambda: parquet("zstd"),
    "gzip": lambda: gzip.compress(FLOATS),
    "zstd": lambda: packed("zstd", FLOATS),
    "lz4": lambda: packed("lz4", TEXT),
    "a share": lambda: SHARE[3:5].tobytes(),
    "a share, zstd": lambda: packed("zstd", SHARE.tobytes()),
    "a seed": lambda: SEED,
    "a seed in hexadecimal": lambda: SEED.hex().encode(),
    "a seed in base64": lambda: base64.b64encode(b"x" + SEED),
    "a category": lambda: b"a category",
}


@pytest.mark.parametrize("written", WRITTEN.values(), ids=WRITTEN.keys())
def test_the_search_finds_a_planted_row_a_share_and_a_seed(written: Callable[[], bytes]) -> None:
    content = written()
    for inside in (content, OTHER[:1001] + content, OTHER[:4] + content + OTHER[4:99]):
        assert search({"triples/0.arrow": OTHER, "runs/1.arrow": inside}, SECRETS) != []


@pytest.mark.parametrize("name", [repr(float(ROWS[3, 1])), f"{ROWS[0, 0]:.9g}", SEED.hex(), "a category"])
def test_the_search_finds_a_secret_in_the_name_of_an_object(name: str) -> None:
    assert search({f"runs/test/{name}.arrow": OTHER}, SECRETS) != []


def test_the_search_finds_nothing_in_what_is_sealed() -> None:
    sealed = {f"{i}.arrow": seal(bytes(32), f"{i}.arrow", [written()]) for i, written in enumerate(WRITTEN.values())}
    assert search(sealed, SECRETS) == []
