"""A party's configuration as a mapping: vertical and horizontal, with gateways and with files, right and wrong."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from veilmeans.schemas.config import load_config
from veilmeans.schemas.errors import ConfigError

Raw = dict[str, Any]


def gateway() -> Raw:
    """A vertical job with gateways and relative paths."""
    return {
        "party": "payco",
        "run": "run-1",
        "parties": ["payco", "shop"],
        "dealer": "notary",
        "certificate": "payco.crt",
        "key": "payco.key",
        "seed": "payco.seed",
        "storage": "storage",
        "listen": "127.0.0.1:4000",
        "peers": {
            "shop": {"certificate": "shop.crt", "address": "127.0.0.1:4001"},
            "notary": {"certificate": "notary.crt", "address": "127.0.0.1:4002"},
        },
        "triples": {"store": "october"},
        "kmeans": {
            "data": "data.csv",
            "layout": "vertical",
            "rows": 100,
            "features": {"payco": 2, "shop": 3},
            "clusters": 4,
        },
    }


def without_dealer() -> Raw:
    """The same between two parties alone."""
    return changed(gateway(), dealer=None, peers__notary=None)


def horizontal() -> Raw:
    """The same with rows of both parties."""
    return changed(
        gateway(),
        kmeans__layout="horizontal",
        kmeans__rows={"payco": 60, "shop": 40},
        kmeans__features=3,
        kmeans__normalise={"aggregate": True},
    )


def files() -> Raw:
    """The same with outboxes instead of gateways."""
    raw = gateway()
    del raw["listen"]
    raw["exchange"] = {"kind": "files", "outbox": "outbox"}
    for name, peer in raw["peers"].items():
        del peer["address"]
        peer["outbox"] = f"../{name}/outbox"
    return raw


def changed(raw: Raw, **fields: Any) -> Raw:
    """Replace fields in `raw`; `a__b` is field b of field a, and None removes a field."""
    for path, value in fields.items():
        *outer, last = path.split("__")
        target = raw
        for name in outer:
            target = target.setdefault(name, {})
        if value is None:
            del target[last]
        else:
            target[last] = value
    return raw


def written(folder: Path, raw: object) -> Path:
    """Write a configuration file."""
    file = folder / "config.yaml"
    file.write_text(raw if isinstance(raw, str) else yaml.safe_dump(raw, sort_keys=False))
    return file


def refusal(file: Path) -> str:
    """The sentence with which a configuration file is refused, without the file's name, which it must have."""
    with pytest.raises(ConfigError) as raised:
        load_config(file)
    sentence = raised.value.sentence
    assert str(file) in sentence
    return sentence.replace(str(file), "FILE")
