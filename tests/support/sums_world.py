"""Two parties and a dealer for column sums."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.parties import make_configs
from veilmeans.schemas.config import JobConfig

DATA: dict[str, dict[str, list[int]]] = {
    "payco": {"amount": [5, -7, 1000, 0, -1000], "age": [1, 2, 3, 4, 5]},
    "shop": {"visits": [-1, -2, 0, 9, 1000]},
    "bank": {"loans": [0, 0, 0, 0, -3], "cards": [7, 7, 7, 7, 7]},
}


def set_up(folder: Path, parties: int, kind: str, engines: Mapping[str, Any], **triples: int) -> dict[str, JobConfig]:
    """Five rows in shards of two for each party, and a dealer."""
    made = {}
    base = make_configs(folder, parties, kind=kind, dealer="notary", triples={"store": "october", "rows": 5, **triples})
    for name, config in base.items():
        job: dict[str, Any] = {"product": ["payco.amount", "shop.visits"], "bound": 1000}
        if name in DATA:
            job |= {"data": folder / f"{name}.csv", "columns": list(DATA[name])}
            rows = zip(*DATA[name].values(), strict=True)
            lines = [",".join(DATA[name]), *(",".join(map(str, row)) for row in rows)]
            (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
        engine = {"rows_per_shard": 2, **engines.get(name, {})}
        made[name] = JobConfig.model_validate({**config.model_dump(), "sums": job, "engine": engine})
    return made


def plain(parties: int) -> dict[str, int]:
    named = {f"{name}.{c}": values for name in list(DATA)[:parties] for c, values in DATA[name].items()}
    product = sum(x * y for x, y in zip(named["payco.amount"], named["shop.visits"], strict=True))
    return {name: sum(values) for name, values in named.items()} | {"payco.amount · shop.visits": product}


def members(configs: Mapping[str, JobConfig]) -> dict[str, JobConfig]:
    """The parties, who take part in a run; the dealer does not."""
    return {name: config for name, config in configs.items() if name != config.dealer}


def results(configs: Mapping[str, JobConfig]) -> dict[str, dict[str, int]]:
    return {
        name: json.loads((config.run_folder / "sums.json").read_text()) for name, config in members(configs).items()
    }


# What a party does around its pipeline, in this process.
