"""What the messages of three parties show all others together: nothing, for bits and for words.

The coalition of all parties but one knows its choice bits, the strings that it chose and every message. Whatever it
knows, the strings that it did not choose must be in bijection with (messages, free values of the sender): then the
messages are uniform, and the sender's values stay uniform given the messages. All else is fixed here to any values.
"""

import os

import numpy as np
import pytest

from support.ot_dealing import deal_ots
from veilmeans.crypto.correlations import Mul
from veilmeans.crypto.ot.kinds.bit_chains import BitChain, ChainRun
from veilmeans.crypto.ot.kinds.shared_bits import SharedRun
from veilmeans.crypto.ot.kinds.shared_programs import SharedProgram, compile_shared
from veilmeans.crypto.ot.kinds.shared_words import SharedMulByOt
from veilmeans.crypto.ot.ot_arrays import OtSide

PARTIES = 3
PROGRAMS = {
    "product": compile_shared(((((0,), (1,)),),)),
    "node": compile_shared(((((0,), (2,)),), (((1,), (2,)),))),
    "two messages": compile_shared(((((0,), (1,)),), (((0,), (1,), (2,)),))),
    "inputs of two": compile_shared(((((0, 1), (2, 3)),), (((0,), (2,), (1, 3)), ((1,), (3,))))),
}
ALL = np.uint64(2**64 - 1)


class Lanes:
    """Values of all strings that nobody else knows: in each lane others, `width` bits each."""

    def __init__(self, strings: int, width: int = 1) -> None:
        self.count, self.width, self.used = max(64, 1 << strings * width), width, 0
        self.numbers = np.arange(self.count, dtype=np.uint64)

    def take(self) -> np.ndarray:
        """The next string, in all lanes."""
        found = (self.numbers >> np.uint64(self.used)) & np.uint64((1 << self.width) - 1)
        self.used += self.width
        return found


def pack(bits: np.ndarray) -> np.ndarray:
    return np.packbits(bits.astype(np.uint8), axis=-1, bitorder="little").view(np.uint64)


def unpack(words: np.ndarray) -> np.ndarray:
    return np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=-1, bitorder="little")


def honest_run(
    program: SharedProgram, sender: int, rng: np.random.Generator, twice: bool = False
) -> tuple[SharedRun, int]:
    """The sender's run, and the number of strings unknown to the others; `twice`: both peers' OTs have the same."""
    entries = sum(len(step.entries) for step in program.steps)
    unknown = entries if twice else (PARTIES - 1) * entries
    lanes, sides = Lanes(unknown), []
    for step in program.steps:
        width = len(step.entries)
        peers = [peer for peer in range(PARTIES) if peer != sender]
        c, own = constant_bits(rng, 1, lanes)[0], constant_bits(rng, width, lanes)
        side = {sender: {peer: OtSide(own, c) for peer in peers}}
        others = [pack(np.stack([lanes.take() for _ in range(width)]))] * 2 if twice else None
        for number, peer in enumerate(peers):
            other = others[number] if others else pack(np.stack([lanes.take() for _ in range(width)]))
            known = constant_bits(rng, width, lanes)
            side[peer] = {peer: OtSide(known if rng.integers(0, 2) else other, known ^ other)}
        sides.append([side[chooser] for chooser in range(PARTIES)])
    return SharedRun.begin(program, sender, PARTIES, sides, constant_bits(rng, 4, lanes)), unknown


def constant_bits(rng: np.random.Generator, rows: int, lanes: Lanes) -> np.ndarray:
    """Rows of bits, the same in all lanes."""
    return np.repeat(rng.integers(0, 2, (rows, 1), np.uint64) * ALL, lanes.count // 64, 1)


def seen_bits(run: SharedRun) -> np.ndarray:
    """All messages to both peers, and the sender's free values, in all lanes."""
    seen, received = [], []
    for _ in range(run.program.messages):
        _, sent = run.evaluate(received)
        seen += [row for rows in sent.values() for row in rows]
        received.append(dict.fromkeys(sent, np.zeros((9, run.variables.shape[1]), np.uint64)))
    free = [entry.free for step in run.program.steps for entry in step.entries if entry.free is not None]
    return unpack(np.stack([*seen, *run.variables[free]]))


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("sender", range(PARTIES))
def test_bits_are_uniform_to_all_others_together(name: str, sender: int) -> None:
    rng = np.random.default_rng(1)
    for _ in range(10):
        run, unknown = honest_run(PROGRAMS[name], sender, rng)
        seen = seen_bits(run)[:, : 1 << unknown]
        assert len(seen) == unknown
        assert len(np.unique(seen, axis=1).T) == 1 << unknown


def test_an_ot_used_for_two_pairs_would_be_noticed() -> None:
    """The attack: the message to one peer under the string that made the value for the other shows nothing new."""
    rng = np.random.default_rng(1)
    run, _ = honest_run(PROGRAMS["node"], 0, rng, twice=True)
    seen = seen_bits(run)
    assert len(np.unique(seen, axis=1).T) < 1 << len(seen)


@pytest.mark.parametrize(("times", "multiplies"), [(1, False), (1, True), (2, True)])
@pytest.mark.parametrize("sender", range(PARTIES))
def test_words_are_uniform_to_all_others_together(times: int, multiplies: bool, sender: int) -> None:
    """Modulo 4, so that all strings can be tried; each slice has the sender at another position."""
    rng = np.random.default_rng(1)
    for position in range(PARTIES):
        start = (sender - position) % PARTIES
        run, lanes = honest_chain(times, multiplies, sender, start, rng)
        if not lanes.used:
            continue  # the last of a chain for ⟨r⟩ alone sends nothing
        seen, received = [], []
        for number in range(run.chain.messages):
            step = number + run.chain.first_step
            sent = ChainRun(run.chain, sender, run.sides, run.key, received)
            sent.__dict__["value"] = run.value
            chooser = (start + step) % PARTIES
            if chooser != sender:
                seen += [row for words in sent.message()[chooser].values() for row in words]
            received.append({peer: constants(run.chain, number, peer, sender, rng) for peer in range(PARTIES)})
        if multiplies and position:
            seen.append(run.value[: lanes.count])
        content = np.stack(seen) & np.uint64(3)
        assert 2 * len(content) == lanes.used
        assert len(np.unique(content, axis=1).T) == 1 << lanes.used


def constants(chain: BitChain, number: int, peer: int, sender: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """What the sender may have received: any words."""
    if peer == sender:
        return {}
    shapes = chain.shapes(number, peer, sender)
    return {name: np.full(shape, rng.integers(0, 4), np.uint64) for name, shape in shapes.items()}


def honest_chain(
    times: int, multiplies: bool, sender: int, start: int, rng: np.random.Generator
) -> tuple[ChainRun, Lanes]:
    """The sender's run, whose unknown strings differ in the values for which party `start` is at position 0."""
    position, names = (sender - start) % PARTIES, ["a", "r"] if multiplies else ["r"]
    offered = {
        (step, name)
        for step in range(PARTIES)
        for name in names
        if step != position and (name == "a" or position < step)
    }
    lanes = Lanes(times * len(offered), width=2)
    chain = BitChain(PARTIES, PARTIES * lanes.count, times, multiplies)
    own = slice(start * lanes.count, (start + 1) * lanes.count)
    sides = []
    for chooser in range(PARTIES):
        step, side = (chooser - start) % PARTIES, {}
        for peer in range(PARTIES):
            if peer == chooser or (chooser != sender and peer != sender):
                continue
            zero = np.zeros((len(names), times, chain.count), np.uint64) + rng.integers(0, 4, dtype=np.uint64)
            one = np.zeros_like(zero) + rng.integers(0, 4, dtype=np.uint64)
            if chooser == sender:
                side[peer] = OtSide(zero.reshape(len(names), -1), choices(chain, rng))
                continue
            target = (zero, one)[rng.integers(0, 2)]
            for word, name in enumerate(names):
                if (step, name) in offered:
                    for row in range(times):
                        target[word, row, own] = lanes.take()
            side[chooser] = OtSide(zero.reshape(len(names), -1), one.reshape(len(names), -1))
        sides.append(side)
    chosen = rng.integers(0, 2)
    sides[sender] = {
        peer: OtSide(each.first, np.full_like(each.second, chosen)) for peer, each in sides[sender].items()
    }
    run = ChainRun(chain, sender, sides, os.urandom(32), [])
    value = run.value[own] if position else np.full(lanes.count, rng.integers(0, 4), np.uint64)
    run.__dict__["value"] = np.tile(value, PARTIES)
    return run, lanes


def choices(chain: BitChain, rng: np.random.Generator) -> np.ndarray:
    return np.full(chain.times * chain.count, rng.integers(0, 2), np.uint8)


@pytest.mark.parametrize("same", [False, True])
def test_two_peers_with_one_ot_would_know_b(same: bool) -> None:
    """The attack: where their choice bits differ, peers have both strings of an OT that serves them both, and so b."""
    count, sender = 50, 0
    recipe = SharedMulByOt(Mul(PARTIES, (count,)))
    sides = deal_ots(recipe.requests(), PARTIES)[sender]
    if same:
        sides[2][2] = sides[1][1]
    message = recipe.message(sender, sides, b"", [])
    bit_one = slice(count, 2 * count)
    guess = message[2]["c"][0] - sides[1][1].first[0, bit_one] + sides[1][1].second[0, bit_one]
    zeros = [
        {
            peer: {name: np.zeros(shape, dtype) for name, (shape, dtype) in recipe.message_shapes(0, peer, 0).items()}
            for peer in (1, 2)
        }
    ]
    b = recipe.parts(sender, sides, b"", zeros)["b"]
    assert (guess << np.uint64(1) == b << np.uint64(1)).all() == same
