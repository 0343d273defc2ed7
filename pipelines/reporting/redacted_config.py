"""A party's configuration as its report shows it: as it was written, without details of the machine or the data.

Paths are relative to the configuration's folder; of paths elsewhere only the last part is shown. Ranges and categories
come from the data and are left out, and so are the values of Beam's options, which may be credentials.
"""

from functools import partial
from pathlib import Path, PurePath

import yaml

from veilmeans.schemas.config import JobConfig
from veilmeans.schemas.config_fields import map_paths


def redacted_config(config: JobConfig, base: Path | None = None) -> str:
    """Write the configuration as YAML; `base` is the folder of the file that it was read from."""
    content = config.model_dump(mode="json", exclude_unset=True)
    if "options" in content.get("beam", {}):
        content["beam"]["options"] = [_option(each) for each in content["beam"]["options"]]
    job = content.get("kmeans") or {}
    if job.get("categories"):
        job["categories"] = {column: f"{len(values)} categories" for column, values in job["categories"].items()}
    if (job.get("normalise") or {}).get("ranges"):
        job["normalise"]["ranges"] = f"of {len(job['normalise']['ranges'])} columns"
    shown = map_paths(JobConfig, content, partial(_shorten, None if base is None else base.resolve()))
    return yaml.safe_dump(shown, sort_keys=False, allow_unicode=True, default_flow_style=None, width=90)


def _shorten(base: Path | None, value: str) -> str:
    """The path relative to `base`, or its last part if it lies elsewhere."""
    if "://" in value:
        return value
    if base is not None and value.startswith(f"{base}/"):
        return value.removeprefix(f"{base}/")
    return PurePath(value).name


def _option(value: str) -> str:
    name, equals, _ = value.partition("=")
    return f"{name}{equals and '=…'}" if value.startswith("-") else "…"
