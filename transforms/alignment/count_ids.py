"""The messages with which two parties count their common ids (`crypto.ot.psi.common_count`)."""

import numpy as np

from veilmeans.crypto.ot.psi.common_count import POINT_SIZE, Points, count_common, mask_ids, mask_points, secret_scalar
from veilmeans.crypto.ot.psi.id_hash import IdHashes
from veilmeans.io.exchange.exchange import Exchange, Outgoing, get_arrays
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Array
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import RefusedError
from veilmeans.schemas.message import MessageKey

_POINT_SECONDS = 3e-4  # a peer may take so long for each point, while it is silent
_POINTS = 1 << 20
"""Points in a message at most."""


class IdCounting:
    """One party's side: the leader is the party with fewer ids. `ids`: the numbers of ids of both, in their order."""

    def __init__(self, exchange: Exchange, config: JobConfig, ids: tuple[int, int], secret: bytes) -> None:
        self.exchange, self.config, self.ids, self.scalar = exchange, config, ids, secret_scalar(secret)
        self.leader = 0 if ids[0] <= ids[1] else 1
        self.timeout = config.exchange.timeout_s + _POINT_SECONDS * sum(ids)
        self.peer = next(name for name in config.parties if name != config.party)

    def run(self, hashes: IdHashes) -> int:
        """Count; both parties learn the number."""
        own = mask_ids(self.scalar, hashes)
        if self.config.me.index == self.leader:
            self._send("count.leader", own)
            returned = self._receive("count.returned", len(own))
            theirs = mask_points(self.peer, self.scalar, self._receive("count.member", self.ids[1 - self.leader]))
            found = count_common(returned, theirs)
            self._put("count.number", 0, {"number": np.array([found], np.uint64)})
            return found
        theirs = self._receive("count.leader", self.ids[self.leader])
        self._send("count.returned", mask_points(self.peer, self.scalar, theirs))
        self._send("count.member", own)
        found = int(self._get("count.number", 0, "number", np.uint64, (1,))[0])
        if found > min(self.ids):
            raise RefusedError(f"{self.peer} counted more common ids than there are")
        return found

    def _send(self, stage: str, points: Points) -> None:
        for number, start in enumerate(range(0, len(points), _POINTS)):
            self._put(stage, number, {"points": points[start : start + _POINTS]})

    def _receive(self, stage: str, count: int) -> Points:
        starts = range(0, count, _POINTS)
        shapes = [(min(_POINTS, count - start), POINT_SIZE) for start in starts]
        return np.concatenate([self._get(stage, i, "points", np.uint8, shape) for i, shape in enumerate(shapes)])

    def _put(self, stage: str, number: int, arrays: dict[str, Array]) -> None:
        key = MessageKey(Address(self.config.run, 0, stage, number), self.config.party, self.peer)
        self.exchange.put_all([Outgoing.of(key, arrays)])

    def _get(self, stage: str, number: int, name: str, dtype: type, shape: tuple[int, ...]) -> Array:
        key = MessageKey(Address(self.config.run, 0, stage, number), self.peer, self.config.party)
        array = get_arrays(self.exchange, key, self.timeout).get(name)
        if array is None or array.dtype != dtype or array.shape != shape:
            raise RefusedError(f"message {key} has not the shape that the numbers of ids require")
        return array
