"""What a wrong configuration raises."""

from typing import Any

import pytest

from support.config_text import gateway
from veilmeans.pipelines.session.kmeans_from_config import kmeans_steps
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import ConfigError


def config(**fields: Any) -> JobConfig:
    """A configuration with a small vertical job; `fields` replace some of the job's."""
    job = {"layout": "vertical", "rows": 100, "features": {"payco": 1, "shop": 1}, "clusters": 3, **fields}
    raw = {**gateway(), "triples": {"store": "october"}, "kmeans": job}
    del raw["sums"]
    return JobConfig.model_validate(raw)


def mistake(**fields: Any) -> str:
    with pytest.raises(ConfigError) as raised:
        kmeans_steps(config(**fields))
    return raised.value.sentence
