"""What crosses in rounds with ciphertexts, what is refused in them, and what the owner of a key can read out of them.

The parties play in step, in memory. Everything they send is kept, every send is played twice, and a message may be
exchanged for a forged one on its way.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product as pairs
from typing import Any

import gmpy2
import numpy as np
import pytest
from gmpy2 import mpz
from scipy.sparse import csr_array

from support.kmeans_in_memory import (
    PAILLIER,
    SMALL,
    Table,
    deal_plan,
    horizontal,
    keyrings,
    kmeans_for,
    run_kmeans,
    vertical,
)
from support.parties import NAMES
from veilmeans.crypto import prg
from veilmeans.crypto.he import scheme as he
from veilmeans.crypto.he.product_parameters import HEProductParameters, SchemeParameters
from veilmeans.crypto.he.scheme import Ciphers, PublicKey
from veilmeans.io.storage.he_keyring import Keyring
from veilmeans.schemas.address import Address
from veilmeans.schemas.arrays import Array, Arrays
from veilmeans.schemas.errors import RefusedError
from veilmeans.schemas.kmeans_config import CipherConfig
from veilmeans.schemas.layout import Layout
from veilmeans.schemas.party import Party
from veilmeans.transforms.kmeans.steps import KMeansSteps
from veilmeans.transforms.offline.ciphertexts import make_ciphertexts
from veilmeans.transforms.offline.requirements import Over
from veilmeans.transforms.rounds.he_operations import HEOperations, Tables
from veilmeans.transforms.rounds.interfaces import CiphertextNeed
from veilmeans.transforms.rounds.protocol import Inbox, Stage

ENCRYPT, DISTANCE, UPDATE, UNMASK = "encrypt.00.encrypt", "distance.00.cross", "update.01.cross", "unmask.00.unmask"
STAGES = {ENCRYPT: "y", DISTANCE: "z", UPDATE: "y", UNMASK: "z"}
"""Where ciphertexts cross, and under which name."""
PARTY = Party(0, NAMES[:2])


@dataclass(frozen=True)
class Message:
    """One array on its way, and where it belongs."""

    iteration: int
    stage: str
    shard: int
    sender: int
    peer: int
    name: str
    array: Array

    @property
    def place(self) -> tuple[Any, ...]:
        return self.iteration, self.stage, self.shard, self.sender, self.peer, self.name

    @property
    def look(self) -> tuple[Any, ...]:
        """All that can be seen of it but its content."""
        return *self.place, self.array.shape, str(self.array.dtype)

    @property
    def ciphers(self) -> list[bytes]:
        data, size = self.array.tobytes(), self.array.dtype.itemsize
        return [data[at : at + size] for at in range(0, len(data), size)]


Forge = Callable[[Message], Array | None]


@dataclass
class Watch:
    """What the parties of a run send; `forge` may put something else, or nothing, in the place of an array."""

    forge: Forge = lambda message: message.array
    seen: list[Message] = field(default_factory=list)
    repeated: list[Message] = field(default_factory=list)

    @contextmanager
    def over_tables(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Table, "_play", lambda table, stage, shard, states: self.play(table, stage, shard, states))
            yield

    def play(self, table: Table, stage: Stage, shard: int, states: Sequence[Arrays]) -> list[Arrays]:
        """As a table plays, and each send once more for itself, as a bundle that is retried would."""
        first, again = (
            [
                stage.round.send(context.party, state, context.randomness(stage, shard))
                for context, state in zip(table.contexts, states, strict=True)
            ]
            for _ in range(2)
        )
        received = []
        for context in table.contexts:
            inbox: dict[int, dict[str, Array]] = {}
            for sender in stage.round.senders(context.party):
                at = (table.contexts[0].iteration, stage.name, shard, sender, context.party.index)
                for name, array in again[sender].for_peer(context.party.index).items():
                    self.repeated.append(Message(*at, name, array))
                inbox[sender] = {}
                for name, array in first[sender].for_peer(context.party.index).items():
                    message = Message(*at, name, array)
                    self.seen.append(message)
                    given = self.forge(message)
                    if given is not None:
                        inbox[sender][name] = given
            randomness = context.randomness(stage, shard)
            state = first[context.party.index].state
            received.append(stage.round.receive(context.party, state, Inbox(context.party, inbox), randomness))
        return received


def job(
    layout: Layout, k: int = 3, cipher: SchemeParameters = SMALL, columns_per_shard: int = 4, **fields: Any
) -> KMeansSteps:
    chosen = CipherConfig.model_construct(scheme=cipher.scheme, bits=cipher.bits)
    kmeans = kmeans_for(layout, k, inertia=False, products="he", cipher=chosen, max_iter=2, tol=0, **fields)
    return replace(kmeans, columns_per_shard=columns_per_shard)


def watched(kmeans: KMeansSteps, zeros: float = 0.5, iterations: int = 1, forge: Forge | None = None) -> Watch:
    """A run over made-up rows."""
    shape = kmeans.layout.total_rows, kmeans.layout.total_features
    rng = np.random.default_rng(1)
    rows = rng.random(shape) * (rng.random(shape) >= zeros)
    watch = Watch(forge) if forge else Watch()
    with watch.over_tables():
        run_kmeans(kmeans, rows, rng.random((kmeans.k, shape[1])), iterations)
    return watch


def of_ciphers(messages: Sequence[Message]) -> list[Message]:
    return [message for message in messages if message.array.dtype.kind == "V"]


@pytest.fixture(scope="module")
def runs() -> dict[str, tuple[KMeansSteps, Watch]]:
    """Two iterations by columns, and one by rows, with several shards of both."""
    jobs = {"vertical": job(vertical(9, (3, 4), 4)), "horizontal": job(horizontal((5, 4, 2), 5, 4), 2)}
    return {name: (kmeans, watched(kmeans, iterations=2 if name == "vertical" else 1)) for name, kmeans in jobs.items()}


LAYOUTS = ["vertical", "horizontal"]


# What crosses.
@pytest.mark.parametrize("layout", LAYOUTS)
def test_messages_are_as_large_as_the_plan_says(runs: dict[str, tuple[KMeansSteps, Watch]], layout: str) -> None:
    kmeans, watch = runs[layout]
    plan, found = kmeans.plan(), Counter[tuple[int, str, int, int]]()
    for message in watch.seen:
        found[message.iteration, message.stage, message.shard, message.sender] += message.array.nbytes
    blocks = {Over.ROWS: plan.blocks, Over.COLUMNS: plan.columns}
    expected = {
        (iteration, stage.name, shard, sender): size
        for iteration in range(2 if layout == "vertical" else 1)
        for over, each in blocks.items()
        for shard, block in enumerate(each)
        for stage in plan.traces(over, block, iteration)
        for sender, size in enumerate(stage.sent)
        if size
    }
    stages = {stage for _, stage, _, _ in expected}
    assert stages > STAGES.keys()
    assert {at: size for at, size in found.items() if at[1] in stages and size} == expected


@pytest.mark.parametrize("layout", LAYOUTS)
def test_ciphertexts_cross_in_four_stages_and_no_matrix_does(
    runs: dict[str, tuple[KMeansSteps, Watch]], layout: str
) -> None:
    _, watch = runs[layout]
    assert {(message.stage, message.name) for message in of_ciphers(watch.seen)} == set(STAGES.items())
    assert not [message for message in watch.seen if "operand" in message.stage]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_send_that_is_repeated_gives_the_same_bytes(runs: dict[str, tuple[KMeansSteps, Watch]], layout: str) -> None:
    _, watch = runs[layout]
    assert len(watch.seen) == len(watch.repeated) > 20
    for first, again in zip(watch.seen, watch.repeated, strict=True):
        assert first.look == again.look
        assert first.array.tobytes() == again.array.tobytes()


def ciphers_of(watch: Watch, stage: str) -> int:
    return sum(message.array.size for message in of_ciphers(watch.seen) if message.stage == stage)


def test_nothing_over_columns_depends_on_the_rows_nor_on_their_shards() -> None:
    """One ciphertext for each column and pack: 7 columns, whose others' shares or sums go one way each."""
    for layout in (vertical(6, (3, 4), 6), vertical(6, (3, 4), 1), vertical(24, (3, 4), 5)):
        watch = watched(job(layout))
        assert ciphers_of(watch, ENCRYPT) == ciphers_of(watch, UNMASK) == 3 + 4
    for rows in ((3, 3), (11, 8)):
        watch = watched(job(horizontal(rows, 5, 3)))
        assert ciphers_of(watch, ENCRYPT) == ciphers_of(watch, UNMASK) == 2 * 5


@pytest.mark.parametrize("layout", [vertical(7, (3, 4), 4), horizontal((4, 3), 5, 3)])
def test_nothing_that_is_seen_depends_on_how_many_values_are_zero(layout: Layout) -> None:
    looks = [[message.look for message in watched(job(layout), zeros).seen] for zeros in (0.0, 0.8, 1.0)]
    assert looks[0] == looks[1] == looks[2]


# One mask, one use.
@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_two_ciphertexts_are_alike(runs: dict[str, tuple[KMeansSteps, Watch]], layout: str) -> None:
    """But for what is sent to several owners at once."""
    _, watch = runs[layout]
    sent = of_ciphers(watch.seen)
    places: dict[bytes, set[tuple[Any, ...]]] = {}
    for message in sent:
        for number, cipher in enumerate(message.ciphers):
            places.setdefault(cipher, set()).add((*message.place[:4], message.name, number))
    assert sum(map(len, places.values())) == len(places)
    assert len(places) == sum(message.array.size for message in sent if first_copy(message, sent))


def first_copy(message: Message, sent: Sequence[Message]) -> bool:
    """Whether nobody before this one's recipient gets the same."""
    same = [other.peer for other in sent if other.array.tobytes() == message.array.tobytes()]
    return message.peer == min(same)


@pytest.mark.parametrize("layout", [vertical(9, (3, 4), 4), horizontal((5, 4, 2), 5, 4), vertical(9, (2, 3, 2), 4)])
def test_no_mask_and_no_blind_is_drawn_twice(layout: Layout) -> None:
    """Every stage, shard and iteration has its own addresses, and every maker its own seed."""
    kmeans = job(layout, columns_per_shard=2)
    drawn: list[tuple[Any, ...]] = []
    plan = kmeans.plan()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prg, "uniform", partial(recorded, prg.uniform, drawn))
        deal_plan(kmeans, 2)
    ours = [each for each in drawn if each[2].endswith((".blind", ".mask"))]
    made = [
        (iteration, shard, stage, each)
        for iteration in range(2)
        for shard in range(plan.shards)
        for stage, blindings in plan.ciphertext_needs(shard, iteration).items()
        for each in blindings
    ]
    assert len(ours) == len(set(ours)) == sum(1 + each.masked for *_, each in made)
    labels = [(*place, each.maker, each.label) for *place, each in made]
    assert len(labels) == len(set(labels)) > 20
    assert {stage for _, _, stage, _ in made} == STAGES.keys()
    assert len({ring.seed for ring in keyrings(layout.parties)}) == layout.parties


def recorded(
    draw: Callable[..., Any], drawn: list[tuple[Any, ...]], seed: bytes, address: Address, label: str, *rest: Any
) -> Any:
    drawn.append((seed, address, label))
    return draw(seed, address, label, *rest)


def test_a_label_is_given_once_in_a_round() -> None:
    kmeans = job(vertical(4, (2, 2), 4))
    table = Table.of(deal_plan(kmeans, 1), kmeans.engines.cipher)
    (stage,) = kmeans.encrypt.stages() if kmeans.encrypt else ()
    drawn, (product, _) = table.contexts[0].randomness(stage, 0), kmeans.engines.distance
    assert product is not None
    (label,) = (each.label for each in kmeans.plan().ciphertext_needs(0, 0)[ENCRYPT] if each.maker == 0)
    values = np.ones((2, 3), np.uint64)
    drawn.homomorphic().encrypt(label, PARTY, product, values)
    with pytest.raises(ValueError, match="asked for twice in one round"):
        drawn.homomorphic().encrypt(label, PARTY, product, values)


# What is refused.
def garbage(key: PublicKey) -> mpz:
    return mpz(3) ** 5000 % key.modulus


def of_everything(key: PublicKey) -> mpz:
    """A real ciphertext whose plaintext is as large as can be."""
    return key.raw((mpz(1) << key.capacity) - 1) * key.blind(mpz(7)) % key.modulus


FORGED: dict[str, Callable[[PublicKey], mpz]] = {
    "zero": lambda _: mpz(0),
    "the modulus": lambda key: key.modulus,
    "all bits": lambda key: (mpz(1) << 8 * key.size) - 1,
    "no unit": lambda key: _factor(key) * 5,
}
OPENED = {"garbage": garbage, "above the bound": of_everything}
"""What only the one who decrypts can tell."""


def _factor(key: PublicKey) -> mpz:
    """One of the modulus, which nobody but the key's owner knows."""
    own = next(ring.own for ring in keyrings(2, _cipher(key)) if ring.own.public == key)
    return mpz(own.to_json()["q"], 16)


def _cipher(key: PublicKey) -> SchemeParameters:
    return SchemeParameters(key.scheme, key.bits)


def forged(stage: str, value: Callable[[PublicKey], mpz], cipher: SchemeParameters, message: Message) -> Array:
    """shop's last ciphertext in a stage, another one; it is under shop's key, or under payco's where payco decrypts."""
    if (message.stage, message.sender) != (stage, 1) or message.array.dtype.kind != "V":
        return message.array
    key = keyrings(2, cipher)[1 if message.name == "y" else 0].own.public
    found = message.array.copy()
    found[-1, -1] = he.to_ciphers([value(key)], key.size)[0]
    return found


def refusal(stage: str, forge: Forge, cipher: SchemeParameters = SMALL) -> str:
    with pytest.raises(RefusedError) as raised:
        watched(job(vertical(5, (2, 2), 3), 2, cipher), forge=forge)
    said = raised.value.sentence
    assert said.startswith("shop sent")
    assert not re.search(r"\d{5}|[0-9a-f]{16}", said), "an error tells no value"
    assert stage
    return said


CASES = [*pairs(STAGES, FORGED, [SMALL]), *pairs((ENCRYPT, UNMASK), ("zero", "no unit"), [PAILLIER])]


@pytest.mark.parametrize(("stage", "what", "cipher"), CASES)
def test_what_is_no_ciphertext_is_refused(stage: str, what: str, cipher: SchemeParameters) -> None:
    said = refusal(stage, partial(forged, stage, FORGED[what], cipher), cipher)
    assert said == "shop sent something that is no ciphertext under the key that was agreed on"


@pytest.mark.parametrize("stage", [DISTANCE, UNMASK])
@pytest.mark.parametrize("what", OPENED)
def test_a_plaintext_above_the_bound_is_refused(stage: str, what: str) -> None:
    said = refusal(stage, partial(forged, stage, OPENED[what], SMALL))
    assert "a ciphertext whose plaintext is above the bound" in said


def altered(stage: str, how: Callable[[Array], Array | None], message: Message) -> Array | None:
    meant = (message.stage, message.sender) == (stage, 1) and message.array.dtype.kind == "V"
    return how(message.array) if meant else message.array


SHAPES: dict[str, Callable[[Array], Array | None]] = {
    "nothing": lambda _: None,
    "another type": lambda array: array.view(np.uint64),
    "longer residues": lambda array: np.zeros(array.shape, f"V{array.dtype.itemsize + 1}"),
    "a row less": lambda array: array[1:],
    "other axes": lambda array: array.T if array.shape[0] != array.shape[1] else array.reshape(-1),
}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("what", SHAPES)
def test_another_shape_or_type_is_refused(stage: str, what: str) -> None:
    said = refusal(stage, partial(altered, stage, SHAPES[what]))
    assert f"as {STAGES[stage]!r} where |V192" in said
    assert said.endswith("was due")


# What the owner of a key can read.
ROWS, WIDTH = 3, 4


@dataclass(frozen=True)
class Desk:
    """payco has X, of zeros and ones, and shop has Y and the key. `fresh`: masks get a blind, as they should."""

    product: HEProductParameters
    seed: bytes = b"desk"
    fresh: bool = True

    @property
    def rings(self) -> tuple[Keyring, ...]:
        rings = keyrings(2, self.product.cipher)
        return tuple(replace(ring, seed=prg.derive(self.seed, str(i))) for i, ring in enumerate(rings))

    @property
    def key(self) -> he.PrivateKey:
        return self.rings[1].own

    def at(self, party: int, counts: dict[str, int], encrypted: Ciphers | None = None) -> HEOperations:
        where = Address("store.0", 0, "stage", 0)
        tables = Tables(lambda *_: encrypted)  # type: ignore[arg-type, return-value]
        return HEOperations(
            self.rings[party], tables, 0, where, lambda label: self.made(party, label, counts[label], where)
        )

    def made(self, party: int, label: str, count: int, where: Address) -> Ciphers:
        masked = party == 0
        blinding = CiphertextNeed(label, party, 1, count, self.product, masked)
        if self.fresh or not masked:
            return make_ciphertexts(blinding, self.rings[party], where)
        with pytest.MonkeyPatch.context() as patch:
            ones = partial(np.full, fill_value=he.to_ciphers([mpz(1)], self.key.public.size)[0])
            patch.setattr(he, "blinds", lambda key, random: ones(len(random), dtype=f"V{key.size}"))
            return make_ciphertexts(blinding, self.rings[party], where)

    def encrypted(self, rows: int) -> Ciphers:
        """Enc(Y), Y always the same."""
        y = np.arange(1, rows * self.product.columns + 1, dtype=np.uint64).reshape(rows, -1) * np.uint64(0x123456789)
        peer = self.at(1, {"y": rows * self.product.packs})
        return peer.encrypt("y", Party(1, PARTY.names), self.product, y)

    def blinds(self, rows: int) -> list[mpz]:
        """Those of Enc(Y), which shop knows."""
        return he.from_ciphers(self.made(1, "y", rows * self.product.packs, Address("store.0", 0, "stage", 0)))

    def distances(self, x: csr_array) -> Ciphers:
        count = int(np.prod(self.product.product_shape(x.shape[0])))
        owner = self.at(0, {"z": count}, self.encrypted(x.shape[1]))
        return owner.multiply("z", PARTY, 1, self.product, x)[0]

    def sums(self, x: csr_array) -> Ciphers:
        owner = self.at(0, {"z": x.shape[1] * self.product.packs})
        found = owner.accumulate(PARTY, 1, self.product, x, self.encrypted(x.shape[0]))
        return owner.mask("z", PARTY, 1, self.product, x.shape[1], found)[0]

    def plains(self, ciphers: Ciphers) -> list[int]:
        """The slots that shop decrypts."""
        width, count = self.product.slots.width, self.product.slots.count
        whole = he.decrypt(self.key, ciphers)
        return [int(plain) >> at * width & (1 << width) - 1 for plain in whole for at in range(count)]

    def remaining(self, cipher: mpz) -> mpz:
        """The randomness of a ciphertext: what is left of it without its plaintext."""
        public = self.key.public
        return cipher * gmpy2.invert(public.raw(self.key.decrypt(cipher)), public.modulus) % public.modulus


def small(cipher: SchemeParameters = SMALL, group: int = 1, columns: int = 2) -> HEProductParameters:
    return HEProductParameters(cipher, ROWS, 0, 0, WIDTH, columns, 45, group)


X = csr_array(np.array([[1, 0, 1, 1], [0, 0, 0, 0], [1, 1, 0, 1]], np.uint64))
EMPTY, FULL = csr_array((ROWS, WIDTH), dtype=np.uint64), csr_array(np.ones((ROWS, WIDTH), np.uint64))
STEPS: dict[str, Callable[[Desk, csr_array], Ciphers]] = {"distances": Desk.distances, "sums": Desk.sums}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("x", [EMPTY, FULL], ids=["zeros", "ones"])
def test_what_is_decrypted_looks_uniform_whatever_is_in_it(step: str, x: csr_array) -> None:
    """Always the same X and Y, under other seeds of payco: no bit of the mask is biased by six deviations or more."""
    product, tries = small(), 40
    desks = [Desk(product, seed=bytes([number]) * 4) for number in range(tries)]
    slots = [slot for desk in desks for slot in desk.plains(STEPS[step](desk, x))]
    assert len({slot % 2**64 for slot in slots}) == len(slots) >= tries * ROWS * 2
    hidden = [slot - (1 << product.bound) for slot in slots]
    assert all(0 <= value < (1 << product.bound + product.sigma) + (1 << product.bound) for value in hidden)
    limit = 6 * len(slots) ** 0.5 / 2
    for bit in range(product.bound + product.sigma):
        ones = sum(value >> bit & 1 for value in hidden)
        assert abs(ones - len(slots) / 2) < limit, bit


def candidates(desk: Desk, step: str, masked: Ciphers) -> Iterator[set[mpz]]:
    """For each ciphertext the randomness that any row (or column) of zeros and ones would give it."""
    public, product = desk.key.public, desk.product
    known = desk.blinds(WIDTH if step == "distances" else ROWS)
    moved = [
        gmpy2.powmod(r, 1 << at * product.columns * product.slots.width, public.modulus)
        for at in range(product.group)
        for r in known
    ]
    found = {mpz(1)}
    for each in moved:
        found |= {value * each % public.modulus for value in found}
    for _ in range(masked.size):
        yield found


def read(desk: Desk, step: str) -> list[bool]:
    """Whether the owner of the key finds each ciphertext's row among all that are possible."""
    masked = STEPS[step](desk, X)
    left = [desk.remaining(cipher) for cipher in he.from_ciphers(masked)]
    return [each in found for each, found in zip(left, candidates(desk, step, masked), strict=True)]


PRODUCTS = {"ou": small(), "paillier": small(PAILLIER), "several rows in one": small(group=2, columns=1)}


@pytest.mark.parametrize(("step", "name"), [*pairs(STEPS, ("ou", "paillier")), ("distances", "several rows in one")])
def test_the_owner_of_the_key_cannot_tell_a_row_by_its_randomness(step: str, name: str) -> None:
    """And could, if the masks had no blind: then it finds all of them."""
    desk = Desk(PRODUCTS[name])
    assert all(read(replace(desk, fresh=False), step))
    assert not any(read(desk, step))


def test_shares_of_a_desk_add_up() -> None:
    """So that the tests above look at what is really sent."""
    desk = Desk(small())
    owner = desk.at(0, {"z": ROWS}, desk.encrypted(WIDTH))
    masked, mine = owner.multiply("z", PARTY, 1, desk.product, X)
    theirs = desk.at(1, {}).decrypt(Party(1, PARTY.names), 0, desk.product, masked, ROWS)
    y = np.arange(1, WIDTH * 2 + 1, dtype=np.uint64).reshape(WIDTH, 2) * np.uint64(0x123456789)
    np.testing.assert_array_equal(mine + theirs, X.toarray() @ y)
