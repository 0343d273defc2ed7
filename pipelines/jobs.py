"""What a configured job will ask of the triple store, from its shapes alone."""

from functools import partial

from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import ConfigError
from veilmeans.transforms.plan import Plan, Work
from veilmeans.transforms.sums import product_protocol
from veilmeans.transforms.trace import Shapes


def job_plan(config: JobConfig) -> Plan:
    """The plan of the one job in a configuration."""
    if config.sums is None:
        raise ConfigError(f"the configuration of {config.party} has no job: add `sums:`")
    parties = len(config.parties)
    works = (Work(product_protocol(0, 0), partial(_one_column, parties)),)
    return Plan(works, config.needed_triples.rows, config.engine.rows_per_shard)


def _one_column(parties: int, rows: int) -> list[Shapes]:
    """What is asked for does not depend on how many columns a party has."""
    return [{"x": ((rows, 1), "uint64")}] * parties
