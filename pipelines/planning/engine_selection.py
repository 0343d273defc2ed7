"""Engine selection: which engine makes each owner's cross products where `kmeans.products` says `auto`, and why.

The masked matrix that beaver's products need is sent once and serves both, so all four pairs of engines are compared.
Where a shard of it is too large for a message, beaver is not selected; without a dealer, where Enc(U) of a shard is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product

from veilmeans.crypto.lattice.product_shape import ProductShape
from veilmeans.io.exchange.link_shaping import Link
from veilmeans.pipelines.planning.calibration import calibrate
from veilmeans.pipelines.planning.engine_costs import CostEstimates, OperationCosts, OwnedMatrix, estimate_costs
from veilmeans.pipelines.planning.plan_schema import SelectedEngine
from veilmeans.pipelines.planning.units import format_number, format_size
from veilmeans.pipelines.session.kmeans_from_config import (
    he_bounds,
    layout_of,
    requested_engines,
    scheme_parameters,
    store_iterations,
)
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import HandshakeError
from veilmeans.schemas.handshake_terms import Terms
from veilmeans.transforms.products.engine_parameters import ChosenEngines

ENGINES = ("beaver", "he")
LARGEST_SHARD = 250_000_000
"""Bytes of a shard of a dense matrix: it is one message, and must fit in one (exchange.max_message_mb)."""
_WORD_AND_OPERAND = 8 + 2 * 27  # bytes of a word of X − U, and of Enc(U) for distance and update
_COSTS = "costs"  # name of the costs among what a party announces


@dataclass(frozen=True)
class EngineSelection:
    """The engine of each of an owner's products. `beaver_excluded`: why beaver was not considered, if it was not."""

    distance: str
    update: str
    estimates: CostEstimates
    beaver_excluded: str | None = None

    @property
    def engines(self) -> tuple[str, str]:
        return self.distance, self.update

    @property
    def seconds(self) -> float:
        """Estimated seconds of an iteration; without a dealer, with its share of the offline phase."""
        operand = self.estimates["operand"]["beaver"].seconds if "beaver" in self.engines else 0.0
        distance, update = self.estimates["distance"][self.distance], self.estimates["update"][self.update]
        return distance.total_seconds + update.total_seconds + operand

    def product_seconds(self, product: str, engine: str) -> float:
        """Estimated seconds of one product in an iteration, with the masked matrix that beaver needs."""
        operand = self.estimates["operand"]["beaver"].seconds if engine == "beaver" else 0.0
        return self.estimates[product][engine].total_seconds + operand


def select_engines(
    matrix: OwnedMatrix,
    k: int,
    parties: int,
    iterations: int,
    costs: OperationCosts,
    rows_per_shard: int = 65_536,
    allowed: Sequence[Sequence[str]] = (ENGINES, ENGINES),
    largest_shard: int = LARGEST_SHARD,
    dealt: bool = True,
) -> EngineSelection:
    """Select the two engines that take the least time together; beaver where it makes no difference.

    `allowed`: the engines for the distance and for the update; one that was requested is never excluded. `dealt`: a
    dealer makes the triples.
    """
    estimates = estimate_costs(matrix, k, parties, iterations, costs, rows_per_shard, dealt)
    size, excluded = largest_message(min(matrix.rows, rows_per_shard), matrix.columns, dealt), None
    if size > largest_shard:
        excluded = f"a shard has {format_size(size)}, more than {format_size(largest_shard)}: lower beam.rows_per_shard"
        allowed = [["he"] if "he" in engines else engines for engines in allowed]
    selections = [EngineSelection(distance, update, estimates, excluded) for distance, update in product(*allowed)]
    return min(selections, key=lambda selection: selection.seconds)


def largest_message(rows: int, columns: int, dealt: bool) -> int:
    """Bytes of beaver's largest message for a shard: the masked rows, or without a dealer Enc(U) for both products."""
    if dealt:
        return rows * columns * 8
    return sum(ProductShape(rows, columns, 1, transposed).operand_bytes for transposed in (False, True))


def select_all_engines(config: JobConfig, costs: Sequence[OperationCosts]) -> dict[str, EngineSelection]:
    """Select the engines of each party's products, by the slowest of all parties' costs."""
    job, selections = config.required_kmeans, {}
    shape, slowest = (job.clusters, len(config.parties), store_iterations(config)), OperationCosts.slowest(costs)
    for index, party in enumerate(config.parties):
        requested, matrix = job.engines_of(party), _owned_matrix(config, index)
        allowed = [ENGINES if each == "auto" else (each,) for each in (requested.distance, requested.update)]
        dealt, rows = config.provider == "dealer", config.beam.rows_per_shard
        selections[party] = select_engines(matrix, *shape, slowest, rows, allowed, dealt=dealt)
    return selections


def _owned_matrix(config: JobConfig, index: int) -> OwnedMatrix:
    job, bounds, parameters = config.required_kmeans, he_bounds(config), scheme_parameters(config)
    rows, columns = bounds.layout.rows[index], bounds.layout.features[index]
    sparse = job.sparse.get(config.parties[index])
    update = bounds.update(index, parameters) if job.predict is None else None
    nonzeros = None if sparse is None else sparse.nonzeros
    return OwnedMatrix(rows, columns, bounds.distance(index, parameters), update, nonzeros)


def has_auto_engine(config: JobConfig) -> bool:
    """Return whether the engines depend on costs."""
    requested = [config.required_kmeans.engines_of(party) for party in config.parties]
    return any(
        "auto" in (each.distance, each.update) and _may_be_he(config, index) for index, each in enumerate(requested)
    )


def _may_be_he(config: JobConfig, index: int) -> bool:
    """False if `auto` is `beaver` for an owner, whatever operations cost: it sends less, and computes less.

    With a dealer, that is where a masked row, which is sent once, is no longer than the two ciphertexts that `he` sends
    for it. Without, where 8 bytes of it and 54 of Enc(U) for each word are no more than one ciphertext an iteration.
    """
    layout, size = layout_of(config, config.required_kmeans).at_capacity(), scheme_parameters(config).size
    columns, rows = layout.features[index], min(layout.rows[index], config.beam.rows_per_shard)
    if config.provider == "dealer":
        return 8 * columns > 2 * size
    too_large = largest_message(rows, columns, dealt=False) > LARGEST_SHARD
    return too_large or _WORD_AND_OPERAND * columns > size * store_iterations(config)


def own_costs(config: JobConfig, keep: bool = True) -> OperationCosts:
    """The costs of operations on this machine, and the agreed link. `keep`: a measurement made now is stored."""
    parameters = scheme_parameters(config)
    file = config.storage_folder.measured_costs(parameters.scheme, parameters.bits)
    return calibrate(parameters, file, Link.from_config(config.link), keep)


def announced_costs(config: JobConfig, keep: bool = True) -> dict[str, object]:
    """The costs that a party announces to the others, if the engines depend on them."""
    if not has_auto_engine(config) or config.party not in config.parties:
        return {}
    return {_COSTS: asdict(own_costs(config, keep))}


def agree_on_engines(config: JobConfig, sent: Mapping[str, Terms], received: Mapping[str, Terms]) -> ChosenEngines:
    """Select the engines from all parties' announced costs: all members select the same."""
    if not has_auto_engine(config):
        return requested_engines(config)
    announced = {name: received[name].announced for name in config.parties if name != config.party}
    if config.party in config.parties:
        announced[config.party] = next(iter(sent.values())).announced
    costs = [_costs_of(name, announced[name]) for name in config.parties]
    return tuple(each.engines for each in select_all_engines(config, costs).values())


def _costs_of(party: str, announced: Mapping[str, object]) -> OperationCosts:
    try:
        return OperationCosts.from_json(announced.get(_COSTS))  # type: ignore[arg-type]
    except (ValueError, TypeError):
        needs = "costs of operations, which kmeans.products: auto needs"
        raise HandshakeError(f"{party} announced no {needs}: does it run another veilmeans?") from None


def engines_by_own_costs(config: JobConfig, keep: bool = True) -> tuple[ChosenEngines, Mapping[str, EngineSelection]]:
    """Select the engines before the others' costs are known. No selection is made where engines depend on no costs."""
    if not has_auto_engine(config):
        return requested_engines(config), {}
    selections = select_all_engines(config, [own_costs(config, keep)])
    return tuple(each.engines for each in selections.values()), selections


def explain_engines(
    config: JobConfig, engines: ChosenEngines, selections: Mapping[str, EngineSelection], stored: bool
) -> tuple[SelectedEngine, ...]:
    """The engine of each owner's products with the reason. `stored`: the triple store was made for these engines."""
    job, result = config.required_kmeans, []
    products = ("distance", "update") if job.predict is None else ("distance",)
    for party, pair in zip(config.parties, engines, strict=True):
        selection, masked = selections.get(party), "beaver" in pair
        reason = "the masked matrix is sent once" if masked else "no masked matrix is sent"
        estimates = _estimates_json(selection, "operand")
        result.append(SelectedEngine(party, "operand", "beaver" if masked else "none", "", reason, estimates))
        for name, engine in zip(products, pair, strict=False):
            requested = getattr(job.engines_of(party), name)
            reason = _reason(selection, name, engine, requested, stored)
            result.append(SelectedEngine(party, name, engine, requested, reason, _estimates_json(selection, name)))
    return tuple(result)


def _estimates_json(selection: EngineSelection | None, product: str) -> dict[str, dict[str, float]]:
    return {} if selection is None else {name: asdict(each) for name, each in selection.estimates[product].items()}


def _reason(selection: EngineSelection | None, product: str, engine: str, requested: str, stored: bool) -> str:
    if requested != "auto":
        return "set in kmeans.products"
    if stored:
        return "the triple store was made for it"
    if selection is None:
        return "it sends less than the ciphertexts of he"
    if selection.beaver_excluded and engine == "he":
        return f"beaver is excluded: {selection.beaver_excluded}"
    other = "he" if engine == "beaver" else "beaver"
    seconds, other_seconds = (selection.product_seconds(product, name) for name in (engine, other))
    compared = f"{format_number(seconds)} s an iteration, {other} {format_number(other_seconds)} s"
    return compared if seconds <= other_seconds else f"{compared}, but both products together are faster so"
