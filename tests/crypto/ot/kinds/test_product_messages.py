"""What the bits of a program's message show their receiver: nothing, for every program that comparisons use.

The receiver knows its choice bits c and the strings m_c. Whatever it knows, the strings that it did not choose must be
in bijection with (message, free variables of the sender): then the message is uniform, and the sender's variables stay
uniform given the message. The sender's other variables are fixed here to any values.
"""

import numpy as np
import pytest

from support.ot_dealing import check_kind, make_by_ot
from veilmeans.crypto.correlations import BitProducts, ProductGroups
from veilmeans.crypto.ot.kinds.bit_correlations import group_program
from veilmeans.crypto.ot.kinds.product_programs import Program
from veilmeans.crypto.ot.kinds.product_shares import ProductRun
from veilmeans.crypto.ot.ot_arrays import OtSide

PAIR = (((0,), (2,)),)
BLOCK = (PAIR, ((*PAIR[0], (1, 3)), ((1,), (3,))), (((1, 3), (2,)),), (((0, 2), (1, 3)),))
"""Some sums of two input bits each of both parties."""
NODE = ((((0,), (2,)),), (((1,), (2,)),))
NODES = (*NODE, (((0,), (1,), (2,)),), (((1,), (2,), (3,)), ((0,), (3,))))
PROGRAMS = {
    f"{name}, party {chooser} first": group_program(masks, sums, known, chooser)
    for chooser in range(2)
    for name, masks, sums, known in (("block", 4, BLOCK, True), ("node", 3, NODE, False), ("nodes", 4, NODES, False))
}


def views(program: Program, sender: int, rng: np.random.Generator) -> tuple[list[OtSide], int]:
    """The sender's sides: in each lane other strings that the receiver did not choose, and all else the same."""
    unknown = sum(len(step.entries) for step in program.steps if step.chooser != sender)
    lanes = np.arange(max(64, 1 << unknown), dtype=np.uint64)
    sides, used = [], 0
    for step in program.steps:
        width = len(step.entries)
        constant = rng.integers(0, 2, (width, 1)).astype(bool)
        if step.chooser == sender:
            values = np.broadcast_to(constant, (width, len(lanes)))
            sides.append(OtSide(_packed(values), _packed(np.full((1, len(lanes)), rng.integers(0, 2)))[0]))
            continue
        other = np.array([(lanes >> np.uint64(used + e)) & np.uint64(1) for e in range(width)]).astype(bool)
        used += width
        zero = constant ^ np.zeros_like(other) if rng.integers(0, 2) == 0 else other
        sides.append(OtSide(_packed(zero), _packed(constant ^ other)))
    return sides, unknown


def _packed(bits: np.ndarray) -> np.ndarray:
    return np.packbits(bits.astype(np.uint8), axis=1, bitorder="little").view(np.uint64)


def _lanes(words: np.ndarray) -> np.ndarray:
    return np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=1, bitorder="little")


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("sender", [0, 1])
def test_a_message_is_uniform_to_its_receiver(name: str, sender: int) -> None:
    program, rng = PROGRAMS[name], np.random.default_rng(1)
    variables = 2 if "block" in name else 4
    for _ in range(20):
        sides, unknown = views(program, sender, rng)
        words = sides[0].second.shape[-1]
        fixed = rng.integers(0, 2, (variables, 1), np.uint64) * np.full((variables, words), 2**64 - 1, np.uint64)
        run = ProductRun.begin(program, sender, sides, fixed)
        free = [v for step in program.steps if step.chooser != sender for v in step.free.values()]
        seen = _lanes(np.concatenate([run.bits_to_send(), run.variables[free]]))[:, : 1 << unknown]
        assert len(seen) == unknown
        assert len(np.unique(seen, axis=1).T) == 1 << unknown


def test_a_string_used_for_two_entries_would_be_noticed() -> None:
    """The attack: y ⊕ y' from two bits under one string. The check above then finds fewer messages than strings."""
    program, rng = PROGRAMS["block, party 0 first"], np.random.default_rng(1)
    sides, unknown = views(program, 1, rng)
    twice = [OtSide(side.first, np.repeat(side.second[:1], len(side.second), 0)) for side in sides]
    run = ProductRun.begin(program, 1, twice, np.zeros((2, sides[0].second.shape[-1]), np.uint64))
    seen = _lanes(run.bits_to_send())[:, : 1 << unknown]
    assert len(np.unique(seen, axis=1).T) < 1 << len(seen)


def test_a_plan_in_which_a_bit_to_send_waits_for_another_is_not_taken() -> None:
    """(λ_0 ⊕ λ_3)·λ_1·λ_2 is cheaper in two messages: λ_1's product first, then λ_2's."""
    kind = BitProducts(2, 2, (ProductGroups(1, 4, ((((0, 3), (1,), (2,)),),)),))
    for chooser in range(2):
        assert group_program(4, kind.groups[0].sums, False, chooser).needs_one_message()
    check_kind(kind, make_by_ot(kind))
