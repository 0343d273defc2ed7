"""Random OTs: how many a second on one core, and their bits, silent against IKNP, hashed. CPU time, best of some runs.

AES over long buffers in the same run is the baseline: an OT is some blocks of AES and ten reads of memory.
"""

import os
import time
from collections.abc import Callable

import numpy as np

from benchmarks.figures import Figure, parser, publish
from veilmeans.crypto.ot import base_ot, iknp
from veilmeans.crypto.ot.blocks import Blocks, encrypt, encryption_buffer, make_delta, uniform_blocks
from veilmeans.crypto.ot.cot_supply import IknpReceiver, SilentSender, iknp_sender, silent_receiver
from veilmeans.crypto.ot.ot_arrays import OtRequest, take_chosen, take_offered
from veilmeans.crypto.ot.ot_session import OtSession
from veilmeans.crypto.ot.random_ot import CotSupply, HashKeys, RandomOtReceiver, RandomOtSender
from veilmeans.crypto.ot.silent_ot import MAIN
from veilmeans.schemas.address import Address

SILENT = MAIN.output
IKNP = 1 << 20
REPEATS = 3
TARGET = 8.0
WIDTH = 2
"""Bits of each string, as in the products of a comparison."""


def session(seed: bytes) -> OtSession:
    return OtSession(seed, bytes(32), 0, 1, Address("bench", 0, "ot", 0))


def base_cots(delta: Blocks) -> tuple[Blocks, Blocks]:
    """Base COTs of both parties, dealt."""
    q = uniform_blocks(os.urandom(32), MAIN.base)
    q[:, 0] &= np.uint64(2**64 - 2)
    return q, q ^ (uniform_blocks(os.urandom(32), MAIN.base)[:, :1] & np.uint64(1)) * delta


def offer(delta: Blocks, cots: CotSupply, count: int) -> None:
    take_offered(RandomOtSender(cots, delta, HashKeys.of(session(b""))), OtRequest(1, count, WIDTH, "planes"))


def choose(cots: CotSupply, count: int) -> None:
    take_chosen(RandomOtReceiver(cots, HashKeys.of(session(b""))), OtRequest(1, count, WIDTH, "planes"))


def cpu_seconds(work: Callable[[], object]) -> float:
    """The least CPU time of some runs."""
    times = []
    for _ in range(REPEATS):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def aes_figure() -> Figure:
    """The time of one block of AES-128 in a long buffer."""
    blocks = 1 << 20
    source, target = uniform_blocks(bytes(32), blocks), encryption_buffer(blocks)
    encrypt(bytes(16), source, target)
    return Figure("AES-128, a block", cpu_seconds(lambda: encrypt(bytes(16), source, target)) / blocks * 1e9, "ns")


def silent_figures(delta: Blocks) -> tuple[list[Figure], float]:
    q, t = base_cots(delta)
    own, peers = session(b"sender"), session(b"receiver")
    offered = SilentSender(MAIN, own, delta, q, SILENT)
    offer(delta, offered.supply(), SILENT)
    choose(silent_receiver(MAIN, peers, t, offered.messages, SILENT), SILENT)
    sender = cpu_seconds(lambda: offer(delta, SilentSender(MAIN, own, delta, q, SILENT).supply(), SILENT))
    receiver = cpu_seconds(lambda: choose(silent_receiver(MAIN, peers, t, offered.messages, SILENT), SILENT))
    bits = 8 * sum(message.nbytes for message in offered.messages) / (MAIN.output - MAIN.base)
    rate = 2 * SILENT / (sender + receiver) / 1e6
    return [
        Figure.at_least("silent, random OTs per second and core, mean of both roles", rate, "million", TARGET),
        Figure("silent, sender", sender / SILENT * 1e9, "ns"),
        Figure("silent, receiver", receiver / SILENT * 1e9, "ns"),
        Figure.at_most("silent, message per OT", bits, "bits", 0.41),
    ], rate


def iknp_figures(delta: Blocks, silent_rate: float) -> list[Figure]:
    own, peers = session(b"sender"), session(b"receiver")
    chosen, point = iknp.delta_bits(delta), base_ot.sender_point(peers)
    start = time.process_time()
    keys = base_ot.receiver_keys(own, chosen, point)
    pairs = base_ot.sender_keys(peers, base_ot.receiver_points(own, chosen, point))
    base = time.process_time() - start
    first = IknpReceiver(peers, pairs, IKNP)
    choose(first.supply(), IKNP)
    receiver = cpu_seconds(lambda: choose(IknpReceiver(peers, pairs, IKNP).supply(), IKNP))
    sender = cpu_seconds(lambda: offer(delta, iknp_sender(own, keys, delta, first.messages, IKNP), IKNP))
    rate = 2 * IKNP / (sender + receiver) / 1e6
    return [
        Figure("IKNP, random OTs per second and core, mean of both roles", rate, "million"),
        Figure("IKNP, sender", sender / IKNP * 1e9, "ns"),
        Figure("IKNP, receiver", receiver / IKNP * 1e9, "ns"),
        Figure("IKNP, message per OT", 8 * sum(each.nbytes for each in first.messages) / IKNP, "bits"),
        Figure("silent to IKNP, speed", silent_rate / rate, "×"),
        Figure("127 base OTs, both parties", base * 1e3, "ms"),
    ]


def main() -> None:
    arguments = parser(__doc__).parse_args()
    delta = make_delta(os.urandom(32))
    silent, rate = silent_figures(delta)
    publish([*silent, *iknp_figures(delta, rate), aes_figure()], arguments.json)


if __name__ == "__main__":
    main()
