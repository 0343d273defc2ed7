"""Waiting for a condition that nobody announces: ask, pause, ask again."""

from collections.abc import Callable
from operator import not_

from tenacity import Retrying, retry_if_result, stop_after_delay
from tenacity.wait import wait_base


def poll(condition: Callable[[], bool], seconds: float, pause: wait_base) -> bool:
    """Return whether `condition` holds within `seconds`; `pause` gives the pauses between two questions."""
    polling = Retrying(
        retry=retry_if_result(not_), wait=pause, stop=stop_after_delay(seconds), retry_error_callback=lambda _: False
    )
    return polling(condition)
