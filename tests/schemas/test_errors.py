"""Errors keep their sentence and their code through pickles, runners and gRPC."""

import pickle

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from hypothesis import given
from hypothesis import strategies as st

from veilmeans.schemas import errors
from veilmeans.schemas.errors import ConfigError, RefusedError, VeilmeansError, recover_error

KINDS = [VeilmeansError, *VeilmeansError.__subclasses__()]
SENTENCE = 'bank sent "nothing" as \'x\' where uint64 (2, 1) was due: see "a.csv", row 1,234'


def test_each_kind_has_its_own_exit_code() -> None:
    codes = [kind.code for kind in KINDS]
    assert len(KINDS) == 8
    assert len(set(codes)) == len(codes)
    assert not {0, 130} & set(codes)
    assert dict(zip(codes, KINDS, strict=True)) == errors._BY_CODE


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_comes_back_from_its_pickle(kind: type[VeilmeansError]) -> None:
    again = pickle.loads(pickle.dumps(kind(SENTENCE)))  # noqa: S301
    assert type(again) is kind
    assert again.sentence == SENTENCE
    assert str(again) == f"veilmeans[{kind.code}]: {SENTENCE}"


def test_an_error_is_one_line() -> None:
    assert ConfigError("a\n  b\tc ").sentence == "a b c"


def test_an_error_shows_no_escape_sequence_of_a_peer() -> None:
    error = RefusedError("shop has \x1b[2J\x9bx")
    assert error.sentence == r"shop has \x1b[2J\x9bx"
    assert RefusedError(error.sentence).sentence == error.sentence


WRAPPED = {
    "bare": "{}",
    "traceback": 'Traceback (most recent call last):\n  File "x.py", line 3\nveilmeans.schemas.errors.X: {}\n',
    "step": "RuntimeError: {} [while running 'Send sums.00.share-ptransform-17']",
    "Java": "org.apache.beam.sdk.util.UserCodeException: java.lang.RuntimeException: Error received from SDK harness "
    'for instruction 12: Traceback (most recent call last):\\n  File "x.py"\\nX: {}\\n\\tat org.apache.beam.Foo',
    "gRPC": "Flight error: {}. gRPC client debug context: UNKNOWN:Error received from peer ipv4:127.0.0.1:4000 "
    '{{grpc_status:2, grpc_message:"{}"}}. Client context: IOError: Server never sent a data message. Detail: Internal',
    "Flight": "{}. Client context: OK. Detail: Failed",
    "quoted": "FlightServerError('{}'",
}


@pytest.mark.parametrize("text", WRAPPED.values(), ids=WRAPPED.keys())
@pytest.mark.parametrize("kind", KINDS)
def test_the_sentence_is_found_in_the_text_that_a_runner_makes_of_it(kind: type[VeilmeansError], text: str) -> None:
    mark = str(kind(SENTENCE))
    for error in (RuntimeError(text.format(mark, mark)), text.format(mark, mark)):
        found = recover_error(error)
        assert type(found) is kind
        assert found is not None
        assert found.sentence == SENTENCE


@given(st.text("abc ,:.()", min_size=1), st.sampled_from(sorted(WRAPPED)))
def test_any_sentence_is_found(text: str, how: str) -> None:
    error = RefusedError(f"a{text}a")
    found = recover_error(WRAPPED[how].format(error, error))
    assert found is not None
    assert found.sentence == error.sentence


def test_an_error_of_ours_is_returned_as_it_is_and_others_are_not_recovered() -> None:
    error = ConfigError("x. Client context")
    assert recover_error(error) is error
    assert recover_error(ValueError("veilmeans went wrong")) is None
    assert recover_error("") is None


def test_an_unknown_code_is_still_an_error() -> None:
    found = recover_error("veilmeans[99]: the moon is full")
    assert type(found) is VeilmeansError
    assert found is not None
    assert found.sentence == "the moon is full"


def _refuse(number: int) -> int:
    raise RefusedError(f"{SENTENCE} ({number})")


@pytest.mark.parametrize("mode", ["in_memory", "multi_threading"])
def test_a_sentence_survives_a_pipeline(mode: str) -> None:
    """In memory, Beam builds a new error from the text; through gRPC a traceback comes back."""
    options = PipelineOptions([f"--direct_running_mode={mode}"])
    pipeline = beam.Pipeline(runner="FnApiRunner", options=options)
    _ = pipeline | beam.Create([7]) | "Refuse 'x'" >> beam.Map(_refuse)
    with pytest.raises(Exception, match="while running") as raised:
        pipeline.run().wait_until_finish()
    found = recover_error(raised.value)
    assert type(found) is RefusedError
    assert found is not None
    assert found.sentence == f"{SENTENCE} (7)"
