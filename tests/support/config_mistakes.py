"""Configurations of a small K-means job, right and wrong."""

from typing import Any

import pytest

from support.config_text import gateway
from veilmeans.pipelines.session.kmeans_from_config import kmeans_steps
from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.errors import ConfigError


def config(**fields: Any) -> JobConfig:
    """A configuration with a small vertical job; `fields` replace some of the job's."""
    job = {"layout": "vertical", "rows": 100, "features": {"payco": 1, "shop": 1}, "clusters": 3, **fields}
    return JobConfig.model_validate({**gateway(), "kmeans": job})


def mistake(**fields: Any) -> str:
    """The sentence with which the protocols of a wrong job are refused."""
    with pytest.raises(ConfigError) as raised:
        kmeans_steps(config(**fields))
    return raised.value.sentence
