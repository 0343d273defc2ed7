"""The sentence of the error that a call raises."""

from collections.abc import Callable

import pytest

from veilmeans.schemas.errors import VeilmeansError


def error_sentence(call: Callable[[], object], kind: type[VeilmeansError]) -> str:
    """Return the one sentence of the error that a call raises."""
    with pytest.raises(kind) as error:
        call()
    assert "\n" not in error.value.sentence
    return error.value.sentence
