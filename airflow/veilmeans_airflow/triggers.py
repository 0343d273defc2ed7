"""Wait for peers' gateways in Airflow's triggerer, which has no key of the party.

It opens a TCP connection and closes it. Who listens there is checked by the command, which pins certificates.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

_ATTEMPT = 5.0  # seconds for one connection


class GatewaysListenTrigger(BaseTrigger):
    """Fire when every address accepts a connection."""

    def __init__(self, addresses: Sequence[str], interval: float = 5.0) -> None:
        super().__init__()
        self.addresses, self.interval = list(addresses), interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the path of this class and what its constructor needs."""
        path = f"{type(self).__module__}.{type(self).__qualname__}"
        return path, {"addresses": self.addresses, "interval": self.interval}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Try all addresses again and again."""
        while not all([await _listens(address) for address in self.addresses]):
            await asyncio.sleep(self.interval)
        yield TriggerEvent({"addresses": self.addresses})


async def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, int(port)), _ATTEMPT)
    except (TimeoutError, OSError):
        return False
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return True
