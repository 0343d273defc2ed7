"""Which engine makes each owner's cross products: the choice of `auto`, and the numbers behind it.

The masked matrix that beaver's products need crosses once and serves both, so all four pairs of engines are compared.
Where a shard of it is too large for a message, beaver is not chosen.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from veilmeans.pipelines.planning.calibration import calibrate
from veilmeans.pipelines.planning.engine_costs import Costs, Estimate, Estimates, Link, Owner, estimate, slowest
from veilmeans.pipelines.planning.plan_schema import Json, SelectedEngine
from veilmeans.pipelines.planning.units import short
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
from veilmeans.schemas.kmeans_config import KMeansConfig
from veilmeans.transforms.products.engine_parameters import ChosenEngines

ENGINES = ("beaver", "he")
LARGEST_SHARD = 250_000_000
"""Bytes of a shard of a dense matrix: it is one message, and must fit in one (exchange.max_message_mb)."""


@dataclass(frozen=True)
class EngineSelection:
    """The engine of each of an owner's products. `refused`: why beaver is out of the question, if it is."""

    distance: str
    update: str
    estimates: Estimates
    refused: str | None = None

    @property
    def seconds(self) -> float:
        """Of an iteration."""
        return _seconds(self.estimates, self.distance, self.update)

    @property
    def sends_operand(self) -> bool:
        """Whether the masked matrix crosses."""
        return "beaver" in (self.distance, self.update)


def select_engines(
    owner: Owner,
    k: int,
    parties: int,
    iterations: int,
    costs: Costs,
    rows_per_shard: int = 65_536,
    allowed: Sequence[Sequence[str]] = (ENGINES, ENGINES),
    largest_shard: int = LARGEST_SHARD,
) -> EngineSelection:
    """The two engines that take the least time together; beaver where it makes no difference.

    `allowed`: those that may be chosen for the distance and for the update; one that is asked for is never refused.
    """
    estimates = estimate(owner, k, parties, iterations, costs, rows_per_shard)
    size, refused = min(owner.rows, rows_per_shard) * owner.columns * 8, None
    if size > largest_shard:
        refused = f"a shard has {short(size / 1e6)} MB, more than {short(largest_shard / 1e6)}: lower rows_per_shard"
        allowed = [["he"] if "he" in engines else engines for engines in allowed]
    distance, update = min(itertools.product(*allowed), key=lambda pair: _seconds(estimates, *pair))
    return EngineSelection(distance, update, estimates, refused)


def _seconds(estimates: Estimates, distance: str, update: str) -> float:
    operand = estimates["operand"]["beaver"].seconds if "beaver" in (distance, update) else 0.0
    return estimates["distance"][distance].seconds + estimates["update"][update].seconds + operand


_PRODUCTS = ("distance", "update")


def engine_choices(
    config: JobConfig, found: Mapping[str, EngineSelection], chosen: ChosenEngines, settled: bool
) -> tuple[SelectedEngine, ...]:
    """For each owner and product; `settled`: the store was made for `chosen`."""
    job, result = config.required_kmeans, []
    products = _PRODUCTS if job.predict is None else _PRODUCTS[:1]
    for (party, choice), engines in zip(found.items(), chosen, strict=True):
        result.append(_operand(party, choice, "beaver" in engines))
        for product, engine in zip(products, engines, strict=False):
            asked = getattr(job.engines_of(party), product)
            estimates = {name: _json(each) for name, each in choice.estimates[product].items()}
            why = _why(choice, product, engine, asked, settled)
            result.append(SelectedEngine(party, product, engine, asked, why, estimates))
    return tuple(result)


def _operand(party: str, choice: EngineSelection, sent: bool) -> SelectedEngine:
    """The masked matrix that both of an owner's products by beaver share."""
    why = "the masked matrix is sent once" if sent else "no masked matrix is sent"
    estimates = {name: _json(each) for name, each in choice.estimates["operand"].items()}
    return SelectedEngine(party, "operand", "beaver" if sent else "none", "", why, estimates)


def _why(choice: EngineSelection, product: str, engine: str, asked: str, settled: bool) -> str:
    if asked != "auto":
        return "as kmeans.products asks"
    if settled:
        return "the store was made for it"
    if choice.refused and engine == "he":
        return f"beaver is out of the question: {choice.refused}"
    other = "he" if engine == "beaver" else "beaver"
    mine, theirs = (_product_seconds(choice, product, name) for name in (engine, other))
    if mine <= theirs:
        return f"{short(mine)} s an iteration, {other} {short(theirs)} s"
    return f"{short(mine)} s an iteration, {other} {short(theirs)} s, but with the other product it is quicker"


def _product_seconds(choice: EngineSelection, product: str, engine: str) -> float:
    """Of an iteration; the masked matrix that beaver needs is in it."""
    operand = choice.estimates["operand"]["beaver"].seconds if engine == "beaver" else 0.0
    return choice.estimates[product][engine].seconds + operand


def _json(each: Estimate) -> Json:
    return {
        "seconds": each.seconds,
        "bytes": each.bytes,
        "offline_seconds": each.offline_seconds,
        "offline_bytes": each.offline_bytes,
        "why": each.why,
    }


_COSTS = "costs"


def announced_costs(config: JobConfig, keep: bool = True) -> dict[str, object]:
    """What a party tells the others, where something is left to the planner."""
    if not has_auto_engine(config) or config.party not in config.parties:
        return {}
    return {_COSTS: own_costs(config, keep).to_json()}


def own_costs(config: JobConfig, keep: bool = True) -> Costs:
    """What operations cost on this machine, and the configured link. `keep`: a measurement made now is kept."""
    return calibrate(scheme_parameters(config), config.storage, Link.shaped(config.exchange.shape), keep)


def agree_on_engines(config: JobConfig, said: Mapping[str, Terms], heard: Mapping[str, Terms]) -> ChosenEngines:
    """The engines that all parties and the dealer find alike, from what each of the parties has said."""
    if not has_auto_engine(config):
        return requested_engines(config)
    mine = next(iter(said.values())).announced
    costs = [_costs(name, mine if name == config.party else heard[name].announced) for name in config.parties]
    return tuple((each.distance, each.update) for each in select_all_engines(config, costs).values())


def select_all_engines(config: JobConfig, costs: Sequence[Costs]) -> dict[str, EngineSelection]:
    """For each party the engines of its products, and the numbers behind the choice."""
    job, agreed, iterations = config.required_kmeans, slowest(costs), store_iterations(config)
    found = {}
    for index, party in enumerate(config.parties):
        asked = job.engines_of(party)
        allowed = tuple(ENGINES if engine == "auto" else (engine,) for engine in (asked.distance, asked.update))
        owner, shard = _owner(config, job, index), config.engine.rows_per_shard
        found[party] = select_engines(owner, job.clusters, len(config.parties), iterations, agreed, shard, allowed)
    return found


def has_auto_engine(config: JobConfig) -> bool:
    """Whether anything is left to the planner.

    A masked row that is no longer than the two ciphertexts that `he` moves for it, and crosses once, is not: no costs
    could speak against `beaver` then.
    """
    if config.kmeans is None:
        return False
    layout, size = layout_of(config, config.kmeans), scheme_parameters(config).size
    for index, party in enumerate(config.parties):
        asked = config.kmeans.engines_of(party)
        if "auto" in (asked.distance, asked.update) and 8 * layout.features[index] > 2 * size:
            return True
    return False


def _owner(config: JobConfig, job: KMeansConfig, index: int) -> Owner:
    bounds, cipher = he_bounds(config), scheme_parameters(config)
    told = job.sparse.get(config.parties[index])
    return Owner(
        bounds.layout.rows[index],
        bounds.layout.features[index],
        bounds.distance(index, cipher),
        bounds.update(index, cipher) if job.predict is None else None,
        None if told is None else told.nonzeros,
    )


def _costs(party: str, announced: Mapping[str, object]) -> Costs:
    try:
        return Costs.from_json(announced.get(_COSTS))  # type: ignore[arg-type]
    except (ValueError, TypeError):
        raise HandshakeError(
            f"{party} did not say what operations cost there, by which kmeans.products: auto goes: does it run another "
            "veilmeans?"
        ) from None
