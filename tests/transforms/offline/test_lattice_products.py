"""Matrix triples that parties make themselves: against integers, in the products that use them, and on the wire."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from support.parties import MANIFEST, NAMES, DealtRun, InMemoryExchange, Shards, in_parallel, make_shares, reconstruct
from support.uniformity import LIMIT, chi_square
from veilmeans.crypto.correlations import MatMul, expand_share, find_part
from veilmeans.crypto.lattice.bit_packing import unpack
from veilmeans.crypto.lattice.lattice_seeds import session_seed
from veilmeans.crypto.lattice.parameters import DEGREE, PRIMES, RESIDUE_BITS
from veilmeans.crypto.ring import Ring
from veilmeans.io.storage.number_seeds import derive_number_seed
from veilmeans.io.storage.scratch import Scratch
from veilmeans.io.storage.triple_store import TripleStore, store_address
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Array, Arrays, from_stream, payload_size
from veilmeans.schemas.errors import RefusedError
from veilmeans.schemas.layout import ShardShape
from veilmeans.schemas.party import Party
from veilmeans.schemas.run_folder import StoreFolder
from veilmeans.transforms.offline.lattice_products import (
    PlacedTriple,
    answer_products,
    corrections,
    make_matrix_triples,
    message_specs,
    placed_triples,
    send_operands,
)
from veilmeans.transforms.products.cross_product import CrossProduct, cross, mask_operand, shape_to_state
from veilmeans.transforms.rounds.executor import run_rounds
from veilmeans.transforms.rounds.party_context import OpenPartyContext
from veilmeans.transforms.rounds.protocol import Inbox, Protocol
from veilmeans.transforms.rounds.trace import ShapeRecorder, trace, zeros

NONCE = b"joint nonce"
OWN_SEEDS = [bytes([i]) * 32 for i in range(3)]
WIDTHS = (2, 1, 3)


def seeds_of(parties: int, nonce: bytes = NONCE) -> list[bytes]:
    """The seeds of the parties' triple stores in one session."""
    return [session_seed(own, nonce) for own in OWN_SEEDS[:parties]]


def triples_of(parties: int, iterations: int = 2, rows: int = 6, k: int = 3) -> tuple[PlacedTriple, ...]:
    """Distances and updates of all pairs."""
    pairs = [(i, j) for i in range(parties) for j in range(parties) if i != j]
    return tuple(
        PlacedTriple(iteration, stage, scope, kind)
        for iteration in range(iterations)
        for owner, peer in pairs
        for stage, scope, kind in (
            ("distance.00.cross", "", MatMul(owner, peer, rows, WIDTHS[owner], k, "operand")),
            ("update.00.cross", "1/", MatMul(owner, peer, WIDTHS[owner], rows, k - 1, "operand", transposed=True)),
        )
    )


def run(
    protocol: Protocol,
    shards: Sequence[Shards],
    seeds: Sequence[bytes],
    dealt: Sequence[Shards] | None = None,
    exchange: InMemoryExchange | None = None,
) -> tuple[list[dict[int, Arrays]], InMemoryExchange]:
    """Run a protocol for all parties, with triple stores of these seeds."""
    shared, names = exchange or InMemoryExchange(), NAMES[: len(seeds)]

    def context(i: int) -> OpenPartyContext:
        store = TripleStore(StoreFolder(Path(names[i])), MANIFEST, seeds[i])
        triples = DealtRun(store, 0, dealt[i] if dealt else {})
        return OpenPartyContext(Party(i, names), "test", 0, shared, OWN_SEEDS[i], triples, Scratch("value"), 60.0)

    states = in_parallel([lambda i=i: run_rounds(protocol, context(i), shards[i]) for i in range(len(seeds))])
    return states, shared


def make(
    parties: int, triples: tuple[PlacedTriple, ...], nonce: bytes = NONCE, shards: Sequence[int] = (0,)
) -> tuple[list[dict[int, Arrays]], InMemoryExchange]:
    states = [{shard: {} for shard in shards} for _ in range(parties)]
    return run(make_matrix_triples(nonce, triples), states, seeds_of(parties, nonce))


def expanded(triple: PlacedTriple, part: str, shard: int, holder: int, parties: int) -> Array:
    """A party's share of a part, as the run will expand it."""
    at = store_address(MANIFEST.store, 0, Address("test", triple.iteration, triple.stage, shard))
    seed = derive_number_seed(seeds_of(parties)[holder], 0)
    return expand_share(seed, at, triple.scope, triple.kind, find_part(triple.kind, part))


@pytest.mark.parametrize("parties", [2, 3])
def test_corrections_complete_the_triples(parties: int) -> None:
    triples = triples_of(parties)
    states, _ = make(parties, triples, shards=(0, 4))
    for triple in triples:
        for shard in (0, 4):
            owner, peer = triple.kind.owner, triple.kind.peer
            u, v = expanded(triple, "u", shard, owner, parties), expanded(triple, "v", shard, peer, parties)
            w = states[owner][shard][triple.correction_key] + expanded(triple, "w", shard, peer, parties)
            assert np.array_equal(w, (u.T if triple.kind.transposed else u) @ v)


def test_states_hold_corrections_and_nothing_else() -> None:
    triples = triples_of(2)
    states, _ = make(2, triples)
    for party, state in enumerate(states):
        assert set(state[0]) == {each.correction_key for each in triples if each.kind.owner == party}
        names = set(corrections(state[0], 1))
        assert names == {
            f"distance.00.cross:matmul.{party}.{1 - party}.w",
            f"update.00.cross:1/matmul.{party}.{1 - party}.w",
        }


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("parties", [2, 3])
def test_a_cross_product_with_triples_made_by_the_parties(parties: int, transposed: bool) -> None:
    """The online round of beaver, with no dealer."""
    shard = ShardShape(7, WIDTHS[:parties])
    product, rng = CrossProduct("y", "z", transposed), np.random.default_rng(1)
    matrices = [rng.integers(0, 2**64, (7, width), np.uint64) for width in shard.widths]
    rights = [rng.integers(0, 2**64, (7 if transposed else width, 4), np.uint64) for width in shard.widths]
    shares = [make_shares(right, parties, seed) for seed, right in enumerate(rights)]
    states: list[Arrays] = [
        {**shape_to_state(shard), "x": matrices[i], **{f"y{owner}": shares[owner][i] for owner in range(parties)}}
        for i in range(parties)
    ]
    online = mask_operand(frozenset(range(parties))) + cross(product)
    shapes = [{k: v if k == "shape" else (v.shape, str(v.dtype)) for k, v in state.items()} for state in states]
    needs = {stage.name: stage.needs for stage in trace(online, shapes)}
    made, _ = make(parties, placed_triples({0: needs}))
    dealt = [{0: corrections(state[0], 0)} for state in made]
    after, _ = run(online, [{0: state} for state in states], seeds_of(parties), dealt)
    for owner, (matrix, right) in enumerate(zip(matrices, rights, strict=True)):
        exact = (matrix.T if transposed else matrix) @ right
        assert np.array_equal(reconstruct(after, 0, f"z{owner}"), exact)


@pytest.mark.parametrize("parties", [2, 3])
def test_messages_have_the_planned_sizes(parties: int) -> None:
    triples = triples_of(parties)
    _, exchange = make(parties, triples)
    specs = message_specs(triples)
    sizes = {
        (key.address.stage.rpartition(".")[2], NAMES.index(key.sender), NAMES.index(key.recipient)): payload.size
        for key, payload in exchange.messages.items()
    }
    assert sizes == {pair: payload_size(spec) for pair, spec in specs.items()}


def test_a_trace_on_zeros_has_the_same_messages_and_needs_nothing() -> None:
    triples = triples_of(2, iterations=1)
    stages = trace(make_matrix_triples(NONCE, triples), [zeros({}), zeros({})])
    traced = {(s.name.rpartition(".")[2], m.sender, m.recipient): m.arrays for s in stages for m in s.messages}
    assert traced == message_specs(triples)
    assert all(not stage.needs for stage in stages)


def payloads(exchange: InMemoryExchange) -> dict[str, bytes]:
    return {str(key): payload.to_pybytes() for key, payload in exchange.messages.items()}


def test_a_retry_sends_the_same_and_another_session_nothing_that_was_sent_before() -> None:
    triples = triples_of(2, iterations=1)
    first, again = payloads(make(2, triples)[1]), payloads(make(2, triples)[1])
    assert first == again
    fresh = make(2, triples, b"another nonce")[1]
    for key, payload in make(2, triples)[1].messages.items():
        before, after = from_stream(payload), from_stream(fresh.messages[key])
        for name in before:
            assert (before[name] == after[name]).mean() < 0.3, name  # tails of 2 bits in few words may agree


def test_operands_may_be_sent_once_and_answered_iteration_by_iteration() -> None:
    triples, seeds = triples_of(2), seeds_of(2)
    states, exchange = run(send_operands(NONCE, triples), [{0: {}}, {0: {}}], seeds)
    together, _ = make(2, triples)
    for iteration in (0, 1):
        some = tuple(each for each in triples if each.iteration == iteration)
        after, _ = run(answer_products(NONCE, some), states, seeds)
        for party in (0, 1):
            for name, array in corrections(after[party][0], iteration).items():
                assert np.array_equal(array, corrections(together[party][0], iteration)[name])
    assert len(exchange.messages) == 2


def bodies(operand: Array) -> Ring:
    return unpack(operand.reshape(-1), RESIDUE_BITS, operand.size * 64 // RESIDUE_BITS).reshape(-1, len(PRIMES), DEGREE)


def test_messages_are_uniform() -> None:
    """Residues of operands are uniform below their primes, and responses are uniform bits."""
    _, exchange = make(2, triples_of(2, iterations=1, rows=2000, k=5))
    for key, payload in exchange.messages.items():
        for name, array in from_stream(payload).items():
            if name.endswith("operand"):
                for i, p in enumerate(PRIMES):
                    stretched = (bodies(array)[:, i].astype(object) << 64) // p
                    assert chi_square(stretched.astype(np.uint64)) < LIMIT, (key, name)
            elif array.size >= 1024:
                assert chi_square(array) < LIMIT, (key, name)


def receive(triples: tuple[PlacedTriple, ...], message: Arrays) -> Arrays:
    """Party 1 receives operands from party 0."""
    round_, party = send_operands(NONCE, triples).rounds[0], Party(1, NAMES[:2])
    return round_.receive(party, {}, Inbox(party, {0: message}), ShapeRecorder())


def test_malformed_operands_are_refused_with_their_senders_name() -> None:
    triples = tuple(each for each in triples_of(2, iterations=1) if each.kind.owner == 0)
    states, _ = run(send_operands(NONCE, triples), [{0: {}}, {0: {}}], seeds_of(2))
    good = {"distance/operand": states[1][0]["operand.0.distance"], "update/operand": states[1][0]["operand.0.update"]}
    for name, array in good.items():
        for bad in ({**good, name: array[..., :-1]}, {k: v for k, v in good.items() if k != name}):
            with pytest.raises(RefusedError, match=r"payco sent .* was expected"):
                receive(triples, bad)
        broken = receive(triples, {**good, name: np.full_like(array, 2**64 - 1)})
        with pytest.raises(RefusedError, match=r"payco sent a malformed message: .*residue"):
            answer_products(NONCE, triples).rounds[0].send(Party(1, NAMES[:2]), broken, ShapeRecorder())


def test_two_operands_of_one_pair_and_orientation_are_an_error() -> None:
    one = triples_of(2, iterations=1)[0]
    other = replace(one, iteration=1, kind=replace(one.kind, inner=5))
    with pytest.raises(ValueError, match="two operands"):
        message_specs((one, other))
