"""Matrix triples without a dealer: each pair of parties makes ⟨UV⟩ by lattice products, in two rounds.

  operands    the owner of U sends Enc(U), once for each peer and orientation      (U·V of distances, Uᵀ·V of updates)
  responses   the peer with V sends c1, c0 for each triple; its share W_peer is expanded from its seed, as V is
              the owner opens W_owner, the correction that a dealer would have dealt

Equations and messages are those of `crypto.lattice.matrix_triple`. U, V, W_peer and all secrets are expanded at the
addresses where the triples will be used, from the seed of the triple store. More than two parties: pair by pair.

State: "operand.OWNER.ORIENTATION" between the rounds; out, at owners, the corrections as `correction_key` names them.
A protocol is for shards of one shape.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from veilmeans.crypto.correlations import Kind, MatMul
from veilmeans.crypto.lattice.lattice_seeds import OperandSeed, ResponseSeed, public_seed
from veilmeans.crypto.lattice.matrix_triple import open_response, respond
from veilmeans.crypto.lattice.operand import MalformedMessageError, encrypt_operand
from veilmeans.crypto.lattice.product_shape import ProductShape
from veilmeans.io.storage.triple_store import correction_name
from veilmeans.schemas.arrays import Array, Arrays, Spec
from veilmeans.schemas.errors import RefusedError
from veilmeans.schemas.party import Party
from veilmeans.transforms.offline.traced_job import Needs
from veilmeans.transforms.products.cross_product import OPERAND
from veilmeans.transforms.rounds.interfaces import CorrelationNeed, Randomness
from veilmeans.transforms.rounds.protocol import Inbox, Protocol, Round, Sent, without


@dataclass(frozen=True)
class PlacedTriple:
    """A matrix triple, and where a run will use it."""

    iteration: int
    stage: str
    scope: str
    kind: MatMul

    @property
    def shape(self) -> ProductShape:
        return ProductShape.of(self.kind)

    @property
    def orientation(self) -> str:
        """The products that U is for; U of another matrix than the rows has another name."""
        name = "update" if self.kind.transposed else "distance"
        return name if self.kind.fixed_stage == OPERAND else f"{name}.{self.kind.fixed_stage}"

    @property
    def correction_key(self) -> str:
        """The iteration, and the name of the correction in the triple store."""
        name = correction_name(self.stage, CorrelationNeed(self.scope, self.kind).label("w"))
        return f"{self.iteration}/{name}"

    def at(self, randomness: Randomness) -> Randomness:
        """The randomness of the round that will use the triple."""
        return randomness.at(self.iteration, self.stage).scoped(self.scope)


def placed_triples(needs: Mapping[int, Needs]) -> tuple[PlacedTriple, ...]:
    """List the matrix triples among the needs of some iterations of a shard."""
    return tuple(
        PlacedTriple(iteration, stage, need.scope, need.kind)
        for iteration, stages in needs.items()
        for stage, stage_needs in stages.items()
        for need in stage_needs
        if isinstance(need.kind, MatMul)
    )


def send_operands(nonce: bytes, triples: tuple[PlacedTriple, ...]) -> Protocol:
    """Send Enc(U) for all these triples; `nonce` is the joint nonce of the session."""
    send, receive = partial(_send_operands, nonce, triples), partial(_receive_operands, triples)
    route = partial(_route, frozenset((each.kind.owner, each.kind.peer) for each in triples))
    return Protocol("lattice-operands", (Round("operands", send, receive, "Enc(U)", route, broadcast=False),))


def answer_products(nonce: bytes, triples: tuple[PlacedTriple, ...]) -> Protocol:
    """Make ⟨UV⟩ of all these triples from the operands in the state; the operands are used up."""
    send, receive = partial(_send_responses, nonce, triples), partial(_receive_responses, triples)
    route = partial(_route, frozenset((each.kind.peer, each.kind.owner) for each in triples))
    return Protocol("lattice-responses", (Round("responses", send, receive, "Enc(U·V + R)", route, broadcast=False),))


def _route(pairs: frozenset[tuple[int, int]], sender: int, parties: int) -> tuple[int, ...]:
    """The recipients of a message of `sender`: a party that owns no rows of a shard has nothing to send."""
    return tuple(each for each in range(parties) if (sender, each) in pairs)


def make_matrix_triples(nonce: bytes, triples: tuple[PlacedTriple, ...]) -> Protocol:
    """Make all these triples of one shard in two rounds."""
    return (send_operands(nonce, triples) + answer_products(nonce, triples)).named("lattice")


def corrections(state: Arrays, iteration: int) -> dict[str, Array]:
    """The corrections of one iteration, as `TripleStore.write_corrections` takes them."""
    prefix = f"{iteration}/"
    return {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}


def message_specs(triples: tuple[PlacedTriple, ...]) -> dict[tuple[str, int, int], Spec]:
    """The arrays of every message, for plans: (round, sender, recipient) -> specification."""
    specs: dict[tuple[str, int, int], Spec] = {}
    for triple in _operands(triples):
        pair = ("operands", triple.kind.owner, triple.kind.peer)
        specs[pair] = specs.get(pair, ()) + _renamed(triple.shape.operand_spec(), f"{triple.orientation}/")
    for number, triple in enumerate(triples):
        pair = ("responses", triple.kind.peer, triple.kind.owner)
        specs[pair] = specs.get(pair, ()) + _renamed(triple.shape.response_spec(), f"{number}/")
    return specs


def _operands(triples: tuple[PlacedTriple, ...]) -> tuple[PlacedTriple, ...]:
    """The first triple of each operand: of each owner, peer and orientation."""
    found: dict[tuple[int, int, str], PlacedTriple] = {}
    for triple in triples:
        kind, shape = triple.kind, triple.shape
        first = found.setdefault((kind.owner, kind.peer, triple.orientation), triple)
        if first.shape.operand_spec() != shape.operand_spec():
            raise ValueError(f"two operands of one shard, owner, peer and orientation: {first.kind} and {kind}")
    return tuple(found.values())


def _renamed(spec: Spec, prefix: str) -> Spec:
    return tuple(replace(each, name=prefix + each.name) for each in spec)


def _prefixed(arrays: Arrays, prefix: str) -> dict[str, Array]:
    return {prefix + name: array for name, array in arrays.items()}


def _seed(randomness: Randomness, kind: Kind) -> bytes:
    return randomness.correlated(kind, "seed").tobytes()


def _expect(inbox: Inbox, peer: int, prefix: str, spec: Spec) -> dict[str, Array]:
    """Read arrays of a peer's message, or refuse those of other shapes and types."""
    return {each.name: inbox.from_peer(peer, prefix + each.name, np.empty(each.shape, each.dtype)) for each in spec}


def _state_key(triple: PlacedTriple) -> str:
    return f"operand.{triple.kind.owner}.{triple.orientation}"


def _send_operands(
    nonce: bytes, triples: tuple[PlacedTriple, ...], party: Party, state: Arrays, randomness: Randomness
) -> Sent:
    messages: dict[int, dict[str, Array]] = {peer: {} for peer in party.others}
    for triple in _operands(triples):
        if triple.kind.owner == party.index:
            own, kind = triple.at(randomness), triple.kind
            u, seed = own.correlated(kind, "u"), _seed(own, OperandSeed(kind))
            message = encrypt_operand(triple.shape, u, seed, public_seed(nonce, kind))
            messages[kind.peer] |= _prefixed(message, f"{triple.orientation}/")
    return Sent(state, to=messages)


def _receive_operands(
    triples: tuple[PlacedTriple, ...], party: Party, state: Arrays, inbox: Inbox, _randomness: Randomness
) -> Arrays:
    received: dict[str, Array] = {}
    for triple in _operands(triples):
        if triple.kind.peer == party.index:
            message = _expect(inbox, triple.kind.owner, f"{triple.orientation}/", triple.shape.operand_spec())
            received[_state_key(triple)] = message["operand"]
    return {**state, **received}


def _send_responses(
    nonce: bytes, triples: tuple[PlacedTriple, ...], party: Party, state: Arrays, randomness: Randomness
) -> Sent:
    messages: dict[int, dict[str, Array]] = {peer: {} for peer in party.others}
    for number, triple in enumerate(triples):
        if triple.kind.peer == party.index:
            response = _respond(nonce, triple, party, state, triple.at(randomness))
            messages[triple.kind.owner] |= _prefixed(response, f"{number}/")
    return Sent(without(state, *map(_state_key, triples)), to=messages)


def _respond(
    nonce: bytes, triple: PlacedTriple, party: Party, state: Arrays, randomness: Randomness
) -> dict[str, Array]:
    kind, operand = triple.kind, {"operand": state[_state_key(triple)]}
    v, share = randomness.correlated(kind, "v"), randomness.correlated(kind, "w")
    seed = _seed(randomness, ResponseSeed(kind))
    try:
        return respond(triple.shape, operand, v, share, seed, public_seed(nonce, kind))
    except MalformedMessageError as error:
        raise RefusedError(f"{party.names[kind.owner]} sent a malformed message: {error}") from None


def _receive_responses(
    triples: tuple[PlacedTriple, ...], party: Party, state: Arrays, inbox: Inbox, randomness: Randomness
) -> Arrays:
    opened: dict[str, Array] = {}
    for number, triple in enumerate(triples):
        if triple.kind.owner == party.index:
            response = _expect(inbox, triple.kind.peer, f"{number}/", triple.shape.response_spec())
            seed = _seed(triple.at(randomness), OperandSeed(triple.kind))
            opened[triple.correction_key] = open_response(triple.shape, response, seed)
    return {**state, **opened}
