"""Silent OT: COTs under Δ, one message, a retry with the same bytes, and what the half trees' hash prevents."""

import os

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st

from support.ot_dealing import SMALL, deal_cots, is_correlated, sessions
from veilmeans.crypto.ot import half_trees, silent_ot
from veilmeans.crypto.ot.blocks import Blocks, choice_bits, make_delta, uniform_blocks
from veilmeans.crypto.ot.cot_supply import SilentSender, silent_receiver, silent_rounds
from veilmeans.crypto.ot.silent_ot import MAIN, SETUP, LpnParameters


@settings(max_examples=25, deadline=None)
@given(trees=st.integers(1, 40), bits=st.integers(1, 9), depth=st.integers(2, 7), data=st.data())
def test_a_round_makes_cots(trees: int, bits: int, depth: int, data: st.DataObject) -> None:
    parameters = LpnParameters(trees, bits, depth)
    count = data.draw(st.integers(1, parameters.output))
    delta, q, t = deal_cots(parameters.base)
    sender, receiver = sessions()
    made, message = silent_ot.extend_sender(parameters, sender, "round 0", delta, q, count)
    received = silent_ot.extend_receiver(parameters, receiver, "round 0", t, message, count)
    assert message.shape == parameters.message_shape(count)
    assert len(made) == len(received) == count
    assert is_correlated(delta, made, received)


@pytest.mark.parametrize("parameters", [SETUP, MAIN])
def test_the_sets_that_are_used(parameters: LpnParameters) -> None:
    """Sizes as in the security page, and choice bits with one hole in each tree on a balanced code word."""
    delta, q, t = deal_cots(parameters.base)
    sender, receiver = sessions()
    made, message = silent_ot.extend_sender(parameters, sender, "round 0", delta, q, parameters.output)
    received = silent_ot.extend_receiver(parameters, receiver, "round 0", t, message, parameters.output)
    assert is_correlated(delta, made, received)
    assert abs(choice_bits(received).mean() - 0.5) < 0.005
    bits_per_ot = 8 * message.nbytes / (parameters.output - parameters.base)
    assert bits_per_ot < 0.85 if parameters is SETUP else bits_per_ot < 0.41
    assert (MAIN.base, MAIN.output, SETUP.base) == (274_432, 1 << 22, 140_972)
    assert SETUP.cut_to(MAIN.base) == LpnParameters(134, 17, 11)
    assert SETUP.cut_to(MAIN.base).output >= MAIN.base


@settings(max_examples=20, deadline=None)
@given(count=st.integers(1, 3 * SMALL.output), pieces=st.lists(st.integers(1, 400), max_size=30))
def test_a_supply_chains_rounds_and_gives_each_cot_once(count: int, pieces: list[int]) -> None:
    delta, q, t = deal_cots(SMALL.base)
    own, peers = sessions()
    sender = SilentSender(SMALL, own, delta, q, count)
    cots = sender.supply()
    made = cots.take(count)
    received = silent_receiver(SMALL, peers, t, sender.messages, count).take(count)
    assert len(silent_rounds(SMALL, count)) == len(sender.messages)
    assert is_correlated(delta, made, received)
    assert len(np.unique(made, axis=0)) == count
    again = SilentSender(SMALL, own, delta, q, count).supply()
    left = count
    for piece in pieces:
        piece = min(piece, left)
        assert (again.take(piece) == made[count - left : count - left + piece]).all()
        left -= piece
    with pytest.raises(ValueError, match="planned"):
        cots.take(1)


def test_the_base_of_a_next_round_is_not_given_out() -> None:
    delta, q, _ = deal_cots(SMALL.base)
    own, _ = sessions()
    count = SMALL.output + 1
    first, _ = silent_ot.extend_sender(SMALL, own, "round 0", delta, q, SMALL.output)
    made = SilentSender(SMALL, own, delta, q, count).supply().take(count)
    given_out = {row.tobytes() for row in made}
    assert not given_out & {row.tobytes() for row in first[: SMALL.base]}


def test_a_retry_gives_the_same_bytes_and_a_new_nonce_others() -> None:
    delta, q, _ = deal_cots(SMALL.base)
    seed, nonce = os.urandom(32), os.urandom(32)

    def message(nonce: bytes) -> Blocks:
        own, _ = sessions(seed, nonce)
        return silent_ot.extend_sender(SMALL, own, "round 0", delta, q, SMALL.output)[1]

    assert (message(nonce) == message(nonce)).all()
    assert not (message(nonce) == message(os.urandom(32))).any()


def climb(key: bytes, layers: list[Blocks], path: list[int]) -> Blocks | None:
    """Attack one tree as its receiver: take a right child for AES_K(parent), and climb from there to the root."""
    for layer in range(1, len(layers)):
        sibling = layers[layer][path[layer] ^ 1]
        if path[layer] % 2 == 0:  # the hole went left, so the right child is known
            block = Cipher(algorithms.AES(key), modes.ECB()).decryptor().update(sibling.tobytes())
            node: Blocks = np.frombuffer(block, np.uint64)
            for above in range(layer - 1, 0, -1):
                node = node ^ layers[above][path[above] ^ 1]
            return node ^ layers[0][path[0] ^ 1]
    return None


@pytest.mark.parametrize("with_sigma", [True, False])
def test_a_receiver_finds_delta_only_without_sigma(with_sigma: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever drops σ from the tree hash loses Δ: this test then fails for the real one."""
    if not with_sigma:
        monkeypatch.setattr(half_trees, "sigma", lambda nodes, out: np.copyto(out, nodes))
    key, depth, found, tried = os.urandom(16), 8, 0, 0
    for _ in range(50):
        delta, roots = make_delta(os.urandom(32)), uniform_blocks(os.urandom(32), 1)
        layers = [np.concatenate([roots, roots ^ delta])]
        for _ in range(depth - 1):
            hashed = half_trees.tree_hash(key, layers[-1])
            layers.append(np.stack([hashed, layers[-1] ^ hashed], 1).reshape(-1, 2))
        leaves = np.empty((1, 1 << depth, 2), np.uint64)
        half_trees.grow_trees(delta, roots, [key] * (depth - 1), leaves)
        assert (leaves[0] == layers[-1]).all()
        hole = os.urandom(1)[0] % (1 << depth)
        guess = climb(key, layers, [hole >> (depth - 1 - i) for i in range(depth)])
        tried += guess is not None
        found += guess is not None and bool((guess == delta).all())
    assert tried > 30
    assert found == (0 if with_sigma else tried)


def first_nodes(label: str, nonce: bytes, run: str, delta: Blocks, seed: bytes) -> tuple[Blocks, np.ndarray]:
    """What a receiver learns of the first layer of each tree of a round: one of its two nodes, and which."""
    _, q, _ = deal_cots(SMALL.base)
    choices = uniform_blocks(os.urandom(32), SMALL.base)[:, :1] & np.uint64(1)
    t = q ^ choices * delta
    own, _ = sessions(seed, nonce, run)
    _, message = silent_ot.extend_sender(SMALL, own, label, delta, q, SMALL.output)
    layer = slice(SMALL.secret, SMALL.secret + SMALL.trees)
    return message[0] ^ t[layer], choices[layer, 0]


@pytest.mark.parametrize(
    ("label", "nonce", "run"), [("round 1", b"a", "s"), ("round 0", b"b", "s"), ("round 0", b"a", "r")]
)
def test_no_two_rounds_have_the_same_roots(label: str, nonce: bytes, run: str) -> None:
    """The attack: k from one round and k ⊕ Δ from another, where the paths of a tree differ, give Δ."""
    delta, seed = make_delta(os.urandom(32)), os.urandom(32)
    first, left = first_nodes("round 0", b"a" * 32, "s", delta, seed)
    again, right = first_nodes("round 0", b"a" * 32, "s", delta, seed)
    other, _ = first_nodes(label, nonce * 32, run, delta, seed)
    assert ((first ^ again == delta).all(1) == (left != right)).all()
    assert not (first ^ other == delta).all(1).any()
    assert not (first == other).all(1).any()


def test_a_message_is_uniform_whatever_the_leaves() -> None:
    """Each block of the message is under a COT of its own: all 127 bits that are masked are balanced."""
    delta, q, _ = deal_cots(SMALL.base)
    own, _ = sessions()
    messages = [silent_ot.extend_sender(SMALL, own, f"round {i}", delta, q, SMALL.output)[1] for i in range(40)]
    ones = np.unpackbits(np.concatenate(messages).view(np.uint8), bitorder="little").reshape(-1, 128).mean(0)
    assert (abs(ones - 0.5) < 0.1).all()


def test_wrong_sizes_are_refused() -> None:
    delta, q, _ = deal_cots(SMALL.base)
    own, _ = sessions()
    with pytest.raises(ValueError, match="COTs from"):
        silent_ot.extend_sender(SMALL, own, "round 0", delta, q[:-1], 1)
    with pytest.raises(ValueError, match="18 bits"):
        LpnParameters(4, 19, 3)
