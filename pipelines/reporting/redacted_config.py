"""A party's configuration as its report shows it: as it was written, without what tells of the machine or the data.

Paths are relative to the configuration's folder, and those elsewhere are names. Ranges and categories tell of the data
and are left out, and so are the values of Beam's options, where credentials may stand.
"""

from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

import yaml

from veilmeans.schemas.config import JobConfig

_PATHS = {"certificate", "key", "seed", "storage", "scratch", "outbox", "data"}


def redacted_config(config: JobConfig, base: Path | None = None) -> str:
    """YAML; `base` is the folder of the file that it was read from."""
    content = config.model_dump(mode="json", exclude_unset=True)
    if "options" in content.get("engine", {}):
        content["engine"]["options"] = [_option(each) for each in content["engine"]["options"]]
    job = content.get("kmeans") or {}
    if job.get("categories"):
        job["categories"] = {column: f"{len(values)} categories" for column, values in job["categories"].items()}
    if (job.get("normalise") or {}).get("ranges"):
        job["normalise"]["ranges"] = f"of {len(job['normalise']['ranges'])} columns"
    shown = _relative(content, None if base is None else base.resolve())
    return yaml.safe_dump(shown, sort_keys=False, allow_unicode=True, default_flow_style=None, width=90)


def _relative(value: Any, base: Path | None) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {
        name: _path(each, base) if name in _PATHS and isinstance(each, str) else _relative(each, base)
        for name, each in value.items()
    }


def _path(value: str, base: Path | None) -> str:
    if "://" in value:
        return value
    if base is not None and value.startswith(f"{base}/"):
        return value.removeprefix(f"{base}/")
    return PurePath(value).name


def _option(value: str) -> str:
    name, equals, _ = value.partition("=")
    return f"{name}{equals and '=…'}" if value.startswith("-") else "…"
