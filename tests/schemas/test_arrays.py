"""Named arrays as Arrow: they are read as they were written, without copies."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from veilmeans.schemas.arrays import (
    Array,
    Arrays,
    from_batch,
    from_stream,
    nbytes,
    payload_size,
    spec_of,
    stream_size,
    to_batch,
    to_stream,
    write_stream,
)
from veilmeans.schemas.shard import Shard
from veilmeans.transforms.rounds.beam_serialisation import ShardCoder

DTYPES = [np.uint8, np.uint16, np.uint32, np.uint64, np.int64, np.float64]
FRAMING = 1024
"""More than Arrow's framing of one array."""
SIZES = [1, 3, 8, 17]
any_shape = hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=5)
any_numbers = st.sampled_from(DTYPES).flatmap(lambda dtype: hnp.arrays(dtype, any_shape))
any_ciphers = st.tuples(any_shape, st.sampled_from(SIZES)).flatmap(
    lambda drawn: hnp.arrays(np.uint8, (*drawn[0], drawn[1])).map(lambda array: array.view(f"V{drawn[1]}")[..., 0])
)
any_arrays = st.dictionaries(st.text(min_size=1, max_size=8), any_numbers | any_ciphers, max_size=4)


def assert_same(found: Arrays, expected: Arrays) -> None:
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array, strict=True)


@settings(deadline=None)
@given(any_arrays)
def test_arrays_come_back_from_a_batch_and_from_a_stream(arrays: dict[str, Array]) -> None:
    assert_same(from_batch(to_batch(arrays)), arrays)
    assert_same(from_stream(to_stream(arrays)), arrays)


@settings(deadline=None)
@given(any_arrays)
def test_a_shard_by_value_comes_back_from_its_coder(arrays: dict[str, Array]) -> None:
    coder = ShardCoder()
    shard = coder.decode(coder.encode(Shard(arrays=arrays)))
    assert shard.reference is None
    assert_same(shard.arrays, arrays)


@given(st.text())
def test_a_shard_by_reference_comes_back_from_its_coder(path: str) -> None:
    coder = ShardCoder()
    assert coder.decode(coder.encode(Shard(reference=path))) == Shard(reference=path)


@settings(deadline=None)
@given(any_arrays)
def test_equal_states_have_equal_bytes(arrays: dict[str, Array]) -> None:
    copies = {name: np.array(array, copy=True) for name, array in arrays.items()}
    assert ShardCoder().encode(Shard(arrays=arrays)) == ShardCoder().encode(Shard(arrays=copies))


@settings(deadline=None)
@given(any_arrays)
def test_the_size_of_a_stream_is_known_before_it_is_written(arrays: dict[str, Array]) -> None:
    sink = pa.BufferOutputStream()
    write_stream(to_batch(arrays), sink)
    assert stream_size(to_batch(arrays)) == sink.getvalue().size


@given(any_arrays)
def test_payload_bytes_are_those_of_the_elements(arrays: dict[str, Array]) -> None:
    assert nbytes(arrays) == sum(array.size * array.itemsize for array in arrays.values())


@pytest.mark.parametrize("dtype", ["u8", "V8", "V256"])
def test_reading_copies_nothing_and_gives_read_only_views(dtype: str) -> None:
    written = np.arange(32_000, dtype=np.uint64).view(dtype).reshape(10, -1)
    buffer = to_stream({"x": written})
    array = from_stream(buffer)["x"]
    assert array.tobytes() == written.tobytes()
    start = array.__array_interface__["data"][0]
    assert buffer.address <= start
    assert start + array.nbytes <= buffer.address + buffer.size
    with pytest.raises(ValueError, match="read-only"):
        array[0, 0] = written[0, 1]


def test_a_decoded_shard_copies_nothing_and_is_aligned() -> None:
    encoded = ShardCoder().encode(Shard(arrays={"x": np.arange(1000, dtype=np.uint64)}))
    array = ShardCoder().decode(encoded).arrays["x"]
    start, base = array.__array_interface__["data"][0], pa.py_buffer(encoded).address
    assert base <= start < base + len(encoded)
    assert array.flags.aligned


@pytest.mark.parametrize("dtype", ["u8", "V8", "V256"])
def test_making_a_batch_copies_nothing(dtype: str) -> None:
    array = np.arange(32_000, dtype=np.uint64).view(dtype)
    column = to_batch({"x": array}).column(0).storage.flatten()
    assert column.buffers()[1].address == array.__array_interface__["data"][0]


def test_ciphertexts_are_binary_of_their_size() -> None:
    (field,) = to_batch({"x": np.zeros((2, 5), "V256")}).schema
    assert field.type == pa.fixed_shape_tensor(pa.binary(256), (2, 5))


@pytest.mark.parametrize("dtype", ["u8", "V16"])
def test_a_row_of_a_larger_batch_is_read_from_its_own_offset(dtype: str) -> None:
    words = np.arange(80, dtype=np.uint64).reshape(2, 40)
    first, second = ({"x": each.view(dtype).reshape(4, -1)} for each in words)
    both = pa.Table.from_batches([to_batch(first), to_batch(second)]).combine_chunks().to_batches()[0]
    assert_same(from_batch(both.slice(1)), second)


@pytest.mark.parametrize("part", [np.s_[10:20], np.s_[10:20, :1], np.s_[::5000], np.s_[-3:, ::-1]])
def test_a_slice_is_written_without_the_array_it_is_cut_from(part: tuple[slice, ...]) -> None:
    large = np.arange(80_000, dtype=np.uint64).reshape(40_000, 2)
    encoded = ShardCoder().encode(Shard(arrays={"x": large[part]}))
    assert len(encoded) < large[part].nbytes + FRAMING
    assert_same(ShardCoder().decode(encoded).arrays, {"x": large[part]})


def test_a_slice_of_arrays_that_were_read_is_written_alone() -> None:
    read = from_stream(to_stream({"x": np.arange(80_000, dtype=np.uint64)}))["x"]
    again = to_stream({"x": read[100:110]})
    assert again.size < FRAMING
    assert_same(from_stream(again), {"x": np.arange(100, 110, dtype=np.uint64)})


def test_the_size_of_a_shard_is_estimated_without_encoding_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ShardCoder, "encode", None)
    assert ShardCoder().estimate_size(Shard(arrays={"x": np.zeros((3, 5), np.uint64)})) == 120
    assert ShardCoder().estimate_size(Shard(reference="memory/x")) == 8


@settings(deadline=None)
@given(any_arrays)
def test_the_size_of_a_payload_follows_from_names_types_and_shapes(arrays: dict[str, Array]) -> None:
    assert payload_size(spec_of(arrays)) == to_stream(arrays).size


@pytest.mark.parametrize("rows", [9, 10, 99_999, 100_000])
def test_the_size_of_a_payload_depends_on_the_digits_of_a_shape(rows: int) -> None:
    arrays = {"x": np.zeros((rows, 3), np.uint64), "c": np.zeros((5, rows), np.uint8)}
    assert payload_size(spec_of(arrays)) == to_stream(arrays).size


ELEMENTS = st.sampled_from([*map(np.dtype, DTYPES), np.dtype("V13")])
SHAPES = st.lists(st.integers(0, 5), min_size=1, max_size=3).map(tuple)


@given(
    st.dictionaries(st.text("abc/.0", min_size=1, max_size=5), st.tuples(ELEMENTS, SHAPES), max_size=4), st.randoms()
)
def test_a_stream_from_a_layout_is_the_one_that_arrow_writes(specs: dict[str, Any], random: Any) -> None:
    arrays = {
        name: np.frombuffer(random.randbytes(int(np.prod(shape)) * np.dtype(dtype).itemsize), dtype).reshape(shape)
        for name, (dtype, shape) in specs.items()
    }
    sink = pa.BufferOutputStream()
    write_stream(to_batch(arrays), sink)
    stream = to_stream(arrays)
    assert stream == sink.getvalue()
    for _ in range(2):
        read = from_stream(stream, validate=True)
        assert list(read) == list(arrays)
        for name, array in arrays.items():
            assert (read[name].dtype, read[name].shape) == (array.dtype, array.shape)
            assert read[name].tobytes() == array.tobytes()
            assert not read[name].flags.writeable


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_forged_framing_is_not_taken_for_a_known_one(place: int, change: int) -> None:
    """Every byte of the stream may be altered: either Arrow refuses it, or no array leaves the stream."""
    stream = to_stream({"e": np.arange(40, dtype=np.uint64), "f": np.ones(3, np.uint8)})
    altered = bytearray(stream)
    altered[place % len(altered)] ^= change
    forged = pa.py_buffer(bytes(altered))
    try:
        read = from_stream(forged, validate=True)
    except (pa.ArrowException, OSError, StopIteration, AttributeError, ValueError, TypeError, NotImplementedError):
        return
    assert sum(array.nbytes for array in read.values()) <= forged.size


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_a_compressed_stream_is_refused_before_it_is_decompressed(codec: str) -> None:
    sink = pa.BufferOutputStream()
    batch = to_batch({"e": np.zeros(8 << 20, np.uint64)})
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_batch(batch)
    bomb, before = sink.getvalue(), pa.default_memory_pool().max_memory()
    with pytest.raises(ValueError, match="compressed"):
        from_stream(bomb, validate=True)
    assert pa.default_memory_pool().max_memory() == before
