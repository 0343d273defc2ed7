"""Which engine makes each party's products: as configured, or as `auto` finds with what all parties say it costs them.

A party's costs are measured once and kept (`pipelines.calibrate`). When a store is made every party tells all others,
and the dealer; everyone then goes by the slowest of each cost and chooses alike.
"""

from collections.abc import Mapping, Sequence

from veilmeans.pipelines.calibrate import calibrate
from veilmeans.pipelines.choice import ENGINES, Choice, choose
from veilmeans.pipelines.costs import Costs, Link, Owner, slowest
from veilmeans.pipelines.jobs import asked_engines, bounds_of, cipher_of, layout_of, store_iterations
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import HandshakeError
from veilmeans.schemas.jobs import KMeansJob
from veilmeans.schemas.terms import Terms
from veilmeans.transforms.engines import Chosen

_COSTS = "costs"


def announced_costs(config: JobConfig) -> dict[str, object]:
    """What a party tells the others, where something is left to the planner."""
    if not _open(config) or config.party not in config.parties:
        return {}
    return {_COSTS: own_costs(config).to_json()}


def own_costs(config: JobConfig) -> Costs:
    """What operations cost on this machine, and the configured link."""
    return calibrate(cipher_of(config), config.storage, Link.shaped(config.exchange.shape))


def settle_engines(config: JobConfig, said: Mapping[str, Terms], heard: Mapping[str, Terms]) -> Chosen:
    """The engines that all parties and the dealer find alike, from what each of the parties has said."""
    if not _open(config):
        return asked_engines(config)
    mine = next(iter(said.values())).announced
    costs = [_costs(name, mine if name == config.party else heard[name].announced) for name in config.parties]
    return tuple((each.distance, each.update) for each in choices(config, costs).values())


def choices(config: JobConfig, costs: Sequence[Costs]) -> dict[str, Choice]:
    """For each party the engines of its products, and the numbers behind the choice."""
    job, agreed, iterations = config.needed_kmeans, slowest(costs), store_iterations(config)
    found = {}
    for index, party in enumerate(config.parties):
        asked = job.engines_of(party)
        allowed = tuple(ENGINES if engine == "auto" else (engine,) for engine in (asked.distance, asked.update))
        owner, shard = _owner(config, job, index), config.engine.rows_per_shard
        found[party] = choose(owner, job.clusters, len(config.parties), iterations, agreed, shard, allowed)
    return found


def _open(config: JobConfig) -> bool:
    """Whether anything is left to the planner.

    A masked row that is no longer than the two ciphertexts that `he` moves for it, and crosses once, is not: no costs
    could speak against `beaver` then.
    """
    if config.kmeans is None:
        return False
    layout, size = layout_of(config, config.kmeans), cipher_of(config).size
    for index, party in enumerate(config.parties):
        asked = config.kmeans.engines_of(party)
        if "auto" in (asked.distance, asked.update) and 8 * layout.features[index] > 2 * size:
            return True
    return False


def _owner(config: JobConfig, job: KMeansJob, index: int) -> Owner:
    bounds, cipher = bounds_of(config), cipher_of(config)
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
