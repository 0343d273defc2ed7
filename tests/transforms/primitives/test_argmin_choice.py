"""The choice of an assignment by provider: OTs against rounds and bytes, alike at all parties."""

import pytest

from veilmeans.crypto import bits
from veilmeans.schemas.config import Provider
from veilmeans.transforms.primitives import argmin_choice
from veilmeans.transforms.primitives.argmin import METHODS, Argmin, Method
from veilmeans.transforms.primitives.argmin_choice import (
    OT_PRICES,
    OfflineWork,
    argmin_cost,
    argmin_work,
    choose_argmin,
    ot_work,
)
from veilmeans.transforms.primitives.compare import Radices, fitting_radices, opened_kinds, sent_bits

LAN, WAN = (125e6, 5e-4), (2.5e6, 4e-2)
HOW = Argmin(compare_bits=52, drop=20)


@pytest.mark.parametrize(
    ("radices", "online", "cots", "offline"),
    [
        ((4, 2, 2, 2), 49, 45, 286),
        ((3, 3, 4), 54, 51, 188),
        ((3, 2, 2, 3), 58, 51, 136),
        ((2, 2, 3, 3), 70, 61, 71),
        ((2, 2, 2, 2, 2), 72, 61, 45),
        ((1, 2, 2, 2, 2, 2), 117, 91, 0),
    ],
)
def test_ots_of_a_comparison_are_those_of_the_table(radices: Radices, online: int, cots: int, offline: int) -> None:
    work = sum(map(ot_work, opened_kinds(32, radices)), OfflineWork()) * (1 / bits.LANES)
    assert (sent_bits(32, radices), work) == (online, OfflineWork(cots, offline / 2))
    assert work == argmin_work(Argmin(compare_bits=52, drop=20, method="pairs", radices=radices), 2)


@pytest.mark.parametrize(
    ("k", "rows", "link", "provider", "method", "radices"),
    [
        (5, 10**4, LAN, "dealer", "pairs", (3, 3, 4)),
        (5, 10**4, LAN, "ot", "tree", (2, 2, 2, 2, 2)),
        (4, 10**4, LAN, "ot", "tree", (2, 2, 2, 2, 2)),
        (5, 10**5, LAN, "ot", "tree", (2, 2, 2, 2, 2)),
        (5, 100, LAN, "ot", "pairs", (3, 3, 4)),
        (5, 1000, WAN, "ot", "pairs", (2, 2, 3, 3)),
        (5, 10**4, LAN, "iknp", "tree", (4, 2, 2, 2)),
        (8, 10**4, LAN, "dealer", "pairs", (3, 3, 4)),
        (8, 10**4, LAN, "ot", "tree", (2, 2, 2, 2, 2)),
    ],
)
def test_the_provider_decides(
    k: int, rows: int, link: tuple[float, float], provider: Provider, method: Method, radices: Radices
) -> None:
    chosen = choose_argmin(HOW, k, rows, 2, *link, provider=provider)
    assert (chosen.method, chosen.radices) == (method, radices)


@pytest.mark.parametrize("provider", ["ot", "iknp"])
@pytest.mark.parametrize(("k", "rows"), [(2, 500), (3, 10**4), (5, 100), (5, 10**5)])
def test_no_other_radices_or_method_take_less(k: int, rows: int, provider: Provider) -> None:
    (rate, round_trip), price = LAN, OT_PRICES[provider]

    def seconds(way: Argmin) -> float:
        rounds, sent = argmin_cost(way, k, 2)
        online = rounds * (argmin_choice.ROUND_SECONDS + round_trip / 2) + rows * sent / rate
        return online + rows * argmin_work(way, k).seconds(price, rate)

    chosen = choose_argmin(HOW, k, rows, 2, rate, round_trip, provider=provider)
    few = [each for rounds in (3, 4, 5) for each in fitting_radices(32, rounds)[::5]]
    others = [Argmin(**{**vars(HOW), "method": method, "radices": each}) for method in METHODS for each in few]
    assert seconds(chosen) <= min(map(seconds, others)) * (1 + 1e-9)


@pytest.mark.parametrize(("parties", "cots", "sent"), [(2, 61, 69), (3, 368, 574), (4, 738, 1782)])
def test_more_parties_choose_radices_of_their_own(parties: int, cots: int, sent: int) -> None:
    """COTs of a party, and bits of all: products of two factors are by far the cheapest of three parties or more."""
    chosen = choose_argmin(HOW, 2, 10**4, parties, *LAN, provider="ot")
    assert chosen.radices == ((2, 2, 2, 2, 2) if parties == 2 else (1, 2, 2, 2, 2, 2))
    work = argmin_work(chosen, 2, parties)
    assert work.cots == cots
    assert int(parties * (work.bits + 0.4 * work.cots / 2)) == sent


@pytest.mark.parametrize("provider", ["ot", "iknp"])
def test_a_configured_method_stays(provider: Provider) -> None:
    for method in METHODS:
        assert choose_argmin(HOW, 8, 10**4, 2, *LAN, methods=(method,), provider=provider).method == method


def test_rounds_of_carry_save_adders_count() -> None:
    """Three parties need one, four need two before each comparison."""
    for method, rounds in (("pairs", (4, 5, 6)), ("tree", (12, 15, 18))):
        how = Argmin(compare_bits=52, drop=20, method=method, radices=(3, 3, 4))
        assert tuple(argmin_cost(how, 5, parties)[0] for parties in (2, 3, 4)) == rounds
