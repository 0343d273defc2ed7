"""Serialisation for Beam: elements as Arrow IPC, never a pickle; the work of a job's steps, each content once.

Beam pickles the work of every step into the graph. A job of many iterations has hundreds of steps, whose work differs
little: one configuration in all, one round in two steps, the same steps in every iteration. `share_work` puts every
content once into one pipeline option, which runners give to their workers; the graph has its digests:

    a step's work, without its context  ┐
    the context, without its configuration  ├▶ the option: content by digest;  the graph: recall(digest, digest, digest)
    the configuration  ┘

The option holds no secrets, as the graph does not: a `PartyContext` has none. On DirectRunner the graph has it all.
"""

import base64
import bz2
import hashlib
import pickle
from dataclasses import dataclass, field
from functools import lru_cache
from io import BytesIO
from typing import Any

import apache_beam as beam
import pyarrow as pa
from apache_beam.internal.cloudpickle import cloudpickle
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.options.value_provider import RuntimeValueProvider
from apache_beam.pipeline import AppliedPTransform, PipelineVisitor

from veilmeans.schemas.arrays import from_stream, nbytes, to_stream
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import ConfigError
from veilmeans.schemas.shard import Shard
from veilmeans.transforms.rounds.party_context import PartyContext

_VALUE, _REFERENCE = b"V", b"R"
_PADDING = b"\0" * 7  # aligns the IPC stream to 8 bytes after the byte of the kind
_OPTION = "veilmeans_work"
_DIGEST_BYTES = 8  # enough to distinguish one job's contents; who can change its option can change its graph, too


class ShardCoder(beam.coders.Coder):
    """Encode a state as one byte for its kind, followed by the IPC stream or the path."""

    def encode(self, value: Shard) -> bytes:
        if value.reference is not None:
            return _REFERENCE + value.reference.encode()
        return b"".join((_VALUE, _PADDING, to_stream(value.arrays)))

    def decode(self, encoded: bytes) -> Shard:
        if encoded[:1] == _REFERENCE:
            return Shard(reference=encoded[1:].decode())
        return Shard(arrays=from_stream(pa.py_buffer(encoded).slice(8)))

    def estimate_size(self, value: Shard) -> int:
        """Estimate the size for Beam's byte counters; without this, Beam would encode the shard to measure it."""
        return nbytes(value.arrays) if value.reference is None else len(value.reference)

    def is_deterministic(self) -> bool:
        return True


class SharedWork:
    """The work of a step, which a graph holds whole, or as digests once `share_work` has seen it."""

    digests: tuple[bytes, ...] = ()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return (recall, self.digests) if self.digests else super().__reduce_ex__(protocol)


class PlainDoFn(SharedWork, beam.DoFn):
    """A DoFn without state and timers, which Beam need not search for them.

    Beam inspects all that `dir` lists, nine times a stage. With the four methods that we use it saves 5 ms a round.
    """

    def __dir__(self) -> list[str]:
        return ["setup", "start_bundle", "process", "finish_bundle"]


class PlainParDo(beam.ParDo):
    """A ParDo without display data, which would be a tenth of a graph: labels say what it does."""

    def display_data(self) -> dict[str, Any]:
        return {}


class WorkOptions(PipelineOptions):
    """The option with a job's shared work; `share_work` sets it."""

    @classmethod
    def _add_argparse_args(cls, parser: Any) -> None:
        parser.add_argument(f"--{_OPTION}", default=None, help="set by veilmeans itself: the work of a job's steps")


_contents: dict[bytes, bytes] = {}
"""Pickles that this process has shared (workers may be threads of the driver) or read from its own job's option."""


def share_work(pipeline: beam.Pipeline) -> None:
    """Put the work of all steps into an option of the pipeline, which is complete. Its workers must get its options."""
    works = _Works()
    pipeline.visit(works)
    _contents.update(works.contents)
    packed = base64.b64encode(bz2.compress(pickle.dumps(works.contents))).decode()
    setattr(pipeline.options.view_as(WorkOptions), _OPTION, packed)


def recall(*digests: bytes) -> Any:
    """Unpickle shared work; what it has left out is put back. It stays shared when it is pickled again."""
    value = _Unpickler(_content(digests[0]), _left_out(digests[1:]) if digests[1:] else None).load()
    if isinstance(value, SharedWork):
        value.digests = digests
    return value


@lru_cache(maxsize=64)
def _left_out(digests: tuple[bytes, ...]) -> Any:
    """A context or configuration, which all steps of a worker may hold together."""
    return recall(*digests)


def _content(digest: bytes) -> bytes:
    if digest not in _contents:
        packed = RuntimeValueProvider.get_value(_OPTION, str, "")
        if packed:
            _contents.update(pickle.loads(bz2.decompress(base64.b64decode(packed))))  # noqa: S301
    if digest not in _contents:
        raise ConfigError(f"a worker has not got the job's option {_OPTION}: its runner must pass pipeline options on")
    return _contents[digest]


@dataclass
class _Works(PipelineVisitor):
    """Finds the work of all steps; `contents`: pickles by digest."""

    contents: dict[bytes, bytes] = field(default_factory=dict)
    _known: dict[int, tuple[bytes, ...]] = field(default_factory=dict)

    def visit_transform(self, transform_node: AppliedPTransform) -> None:
        self.enter_composite_transform(transform_node)

    def enter_composite_transform(self, transform_node: AppliedPTransform) -> None:
        work = getattr(transform_node.transform, "fn", None)
        if isinstance(work, SharedWork) and not work.digests:
            work.digests = self._pack(work, PartyContext, JobConfig)

    def _pack(self, value: Any, *leaves_out: type) -> tuple[bytes, ...]:
        """Pickle a value without what it leaves out, and that apart; return the digests of both."""
        with BytesIO() as file:
            pickler = _Pickler(file, leaves_out[:1])
            pickler.dump(value)
            content = file.getvalue()
        digest = hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()
        self.contents[digest] = content
        return (digest, *(self._pack_once(pickler.left_out[0], *leaves_out[1:]) if pickler.left_out else ()))

    def _pack_once(self, value: Any, *leaves_out: type) -> tuple[bytes, ...]:
        """Pickle what many steps hold; the steps keep it alive, so its identity stands for it."""
        if id(value) not in self._known:
            self._known[id(value)] = self._pack(value, *leaves_out)
        return self._known[id(value)]


class _Pickler(cloudpickle.Pickler):
    """A pickler that leaves out the one value of a type."""

    def __init__(self, file: BytesIO, leaves_out: tuple[type, ...]) -> None:
        super().__init__(file)
        self.leaves_out = leaves_out
        self.left_out: list[Any] = []

    def persistent_id(self, value: Any) -> str | None:
        if not isinstance(value, self.leaves_out):
            return None
        self.left_out += [] if any(value is each for each in self.left_out) else [value]
        if len(self.left_out) > 1:
            raise ValueError(f"the work of a step holds two {type(value).__name__}s")
        return "left out"


class _Unpickler(pickle.Unpickler):
    """An unpickler that puts back what was left out."""

    def __init__(self, content: bytes, left_out: Any) -> None:
        super().__init__(BytesIO(content))
        self.left_out = left_out

    def persistent_load(self, _pid: str) -> Any:
        return self.left_out
