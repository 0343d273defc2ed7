"""The choice of F_min^k: radices, and all pairs or a tree, by what they cost online and offline. All choose the same.

  online      rounds · (4 ms + round trip / 2) + n · bytes / rate
  ot, iknp    n · (COTs · seconds + bytes · price) besides, bytes that a party sends: offline, an OT takes as long as
              some hundred bits on the link, so fewer comparisons and more rounds are cheaper
  dealer      nothing besides: dealt bytes are cheap. They decide among the radices of the fewest rounds

A comparison of 32 bits by `ot` of two parties, as all radices up to 4 have it that no others beat, both ways:

| radices | rounds | bits online | COTs | bits offline, COTs included |
|---|---|---|---|---|
| (4,2,2,2) | 4 | 49 | 45 | 304 |
| (3,3,4) | 3 | 54 | 51 | 208 |
| (3,2,2,3) | 4 | 58 | 51 | 156 |
| (2,2,3,3) | 4 | 70 | 61 | 95 |
| (2,2,2,2,2) | 5 | 72 | 61 | 69 |
| (1,2,2,2,2,2) | 6 | 117 | 91 | 36 |

Of three parties (`crypto.ot.kinds.shared_programs`) radices with a 1 first are cheapest.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from veilmeans.crypto import bits
from veilmeans.crypto.correlations import Kind
from veilmeans.schemas.config import Provider
from veilmeans.schemas.kmeans_config import MOST_CLUSTERS_BY_PAIRS
from veilmeans.transforms.primitives.argmin import METHODS, Argmin, Method, argmin
from veilmeans.transforms.primitives.compare import Radices, choose_radices, fitting_radices, opened_kinds, sent_bits
from veilmeans.transforms.rounds.trace import trace

ROUND_SECONDS = 4e-3
"""The seconds of a round beside the link: computing, storing and handing over its messages."""
DEALT_SECONDS = 2e-9
"""The price of a dealt byte: of expanding, sending and storing it with a dealer. A quarter of a byte at 1 Gbit/s."""
OFFLINE_BYTE_SECONDS = 5e-7
"""The price of a byte sent offline, beside the link's time: traffic between companies is paid for. A gigabyte counts
like eight minutes of a core, less than clouds charge for it. By time alone, (4,2,2,2) would send four times as much as
(2,2,2,2,2) to save a quarter of the OTs."""
MOST_CLUSTERS_BY_PAIRS_OF_OT = 6
"""Beyond, all pairs are never cheaper without a dealer, and their products of masks take seconds to compile."""
_MOST_ROUNDS = 6


@dataclass(frozen=True)
class OtPrice:
    """The price of a COT: processor seconds of a party, strings and products included, and bits sent for it."""

    seconds: float
    bits: float


OT_PRICES = {"ot": OtPrice(1.2e-7, 0.4), "iknp": OtPrice(1.7e-7, 128.0)}


@dataclass(frozen=True)
class OfflineWork:
    """COTs that a party sends and receives, and the bits beyond them that it sends, with all its peers."""

    cots: float = 0.0
    bits: float = 0.0

    def __add__(self, other: "OfflineWork") -> "OfflineWork":
        return OfflineWork(self.cots + other.cots, self.bits + other.bits)

    def __mul__(self, times: float) -> "OfflineWork":
        return OfflineWork(self.cots * times, self.bits * times)

    def seconds(self, price: OtPrice, rate: float) -> float:
        """Price it at a party, on a link of so many bytes per second, which each direction has for itself."""
        sent = (self.bits + price.bits * self.cots / 2) / 8
        return self.cots * price.seconds + sent * (1 / rate + OFFLINE_BYTE_SECONDS)


def choose_argmin(
    how: Argmin,
    k: int,
    rows: int,
    parties: int,
    rate: float,
    round_trip: float,
    methods: Sequence[Method] = METHODS,
    provider: Provider = "dealer",
) -> Argmin:
    """Choose the radices, and all pairs or a tree, for so many rows over a link; all parties choose the same.

    `rate`: bytes per second of the link, `round_trip`: seconds. `provider`: who makes the correlations.
    """
    wait, price = ROUND_SECONDS + round_trip / 2, OT_PRICES.get(provider)
    most = MOST_CLUSTERS_BY_PAIRS if price is None else MOST_CLUSTERS_BY_PAIRS_OF_OT
    considered = [each for each in methods if each == "tree" or k <= most] or methods

    def with_radices(method: Method) -> Argmin:
        if price is None:
            radices = choose_radices(how.width, parties, DEALT_SECONDS * rate)
        else:
            levels, comparisons = (1, k * (k - 1) // 2) if method == "pairs" else ((k - 1).bit_length(), k - 1)
            scale = levels * wait, rows * max(comparisons, 1)
            radices = _ot_radices(how.width, parties, *scale, rate, price)
        return replace(how, method=method, radices=radices)

    def seconds(way: Argmin) -> float:
        rounds, sent = argmin_cost(way, k, parties)
        online = rounds * wait + rows * sent / rate
        if price is None:
            return online
        return online + rows * argmin_work(way, k, parties).seconds(price, rate)

    ways = [with_radices(method) for method in considered]
    return ways[0] if len(ways) == 1 else min(ways, key=seconds)


@lru_cache(maxsize=256)
def argmin_cost(how: Argmin, k: int, parties: int) -> tuple[int, float]:
    """Rounds, and the bytes that a party sends to a peer for a row."""
    stages = trace(argmin(how, k, parties), [{how.source: ((k, bits.LANES), "uint64")}] * parties)
    return len(stages), sum(stage.sent[0] for stage in stages) / bits.LANES / (parties - 1)


@lru_cache(maxsize=256)
def argmin_work(how: Argmin, k: int, parties: int = 2) -> OfflineWork:
    """The OTs of a row."""
    rows = parties * bits.LANES
    stages = trace(argmin(how, k, parties), [{how.source: ((k, rows), "uint64")}] * parties)
    kinds = (need.kind for stage in stages for need in stage.needs)
    return sum((ot_work(kind, parties) for kind in kinds), OfflineWork()) * (1 / rows)


def ot_work(kind: Kind, parties: int = 2) -> OfflineWork:
    """The OTs of one correlation, at each party on average."""
    from veilmeans.crypto.ot.kinds.ot_recipes import ot_cost  # only without a dealer: it imports all of crypto.ot

    cots, sent = ot_cost(kind, parties)
    return OfflineWork(2 * cots / parties, 8 * sent / parties)


@lru_cache(maxsize=64)
def _ot_radices(width: int, parties: int, wait: float, comparisons: int, rate: float, price: OtPrice) -> Radices:
    """Choose radices for so many comparisons at once, each round of which takes `wait` seconds."""
    fitting = [each for rounds in range(1, _MOST_ROUNDS + 1) for each in fitting_radices(width, rounds)]

    def seconds(radices: Radices) -> float:
        kinds = opened_kinds(width, radices, parties)
        work = sum((ot_work(kind, parties) for kind in kinds), OfflineWork()) * (1 / bits.LANES)
        online, offline = sent_bits(width, radices, parties) / 8 / rate, work.seconds(price, rate)
        return len(radices) * wait + comparisons * (online + offline)

    return min(fitting, key=seconds)
