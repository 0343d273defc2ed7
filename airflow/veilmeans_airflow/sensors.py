"""A deferrable sensor: the peers' gateways listen."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from airflow.sdk import BaseOperator

from veilmeans_airflow.triggers import GatewaysListenTrigger


class VeilmeansPeerSensor(BaseOperator):
    """Wait until every address accepts connections; meanwhile no worker is held.

    Only for peers with `gateway: separate`: an embedded gateway listens while a command runs, so two parties that wait
    for each other's would wait until `wait` is over.
    """

    template_fields: Sequence[str] = ("addresses",)

    def __init__(
        self,
        *,
        addresses: Sequence[str],
        interval: float = 5.0,
        wait: timedelta = timedelta(hours=6),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.addresses, self.interval, self.wait = list(addresses), interval, wait

    def execute(self, context: Any) -> None:  # noqa: ARG002
        """Hand over to the triggerer."""
        trigger = GatewaysListenTrigger(self.addresses, self.interval)
        self.defer(trigger=trigger, method_name="complete", timeout=self.wait)

    def complete(self, context: Any, event: Any) -> list[str]:  # noqa: ARG002
        """Return the addresses that listen."""
        return list(event["addresses"])
