"""Two parties that have trained, with new rows to predict: payco has categories and gaps, shop works in stages."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from support.parties import make_configs
from support.worlds import World, changed_config, deal_directly
from veilmeans.schemas.arrays import Real
from veilmeans.schemas.config import JobConfig
from veilmeans.transforms.kmeans.plaintext_kmeans import nearest

COLOURS = ["blue", "green", "red"]
KINDS, NEW = np.arange(30) % 3, np.array([2, 0, 1, 1, 0, 2, 2])
_RNG = np.random.default_rng(3)
AMOUNT, VISITS = KINDS * 10 + _RNG.normal(size=30), KINDS * -4 + _RNG.normal(size=30)
GAP = 4
"""A row without an amount, among the trained and among the new."""
NEW_AMOUNT, NEW_VISITS = NEW * 10 + _RNG.normal(size=7), NEW * -4 + _RNG.normal(size=7)
NEW_AMOUNT[0], NEW_VISITS[1] = 33.0, 9.0
"""Beyond the trained range, within the margin."""


@dataclass(frozen=True)
class PredictionWorld:
    """One folder: the configurations of a finished training, and those of a prediction with its model."""

    trained: World
    prediction: World

    def copied(self, folder: Path) -> "PredictionWorld":
        return PredictionWorld(self.trained.copied(folder), self.prediction.copied(folder))


def prediction_config(config: JobConfig, data: Path | None, rows: object, reveal: object, **job: Any) -> JobConfig:
    """The configuration of a prediction with the model that the run of `config` trained."""
    content = config.model_dump()
    kmeans = content["kmeans"] | {"rows": rows, "predict": {"model": config.run}, "reveal": reveal, **job}
    kmeans |= {} if data is None else {"data": str(data)}
    return JobConfig.model_validate({**content, "run": "new", "triples": {"store": "new"}, "kmeans": kmeans})


def party_tables(ids: Real, kinds: Real, amount: Real, visits: Real) -> dict[str, pa.Table]:
    """The tables of payco and of shop about the same rows."""
    known = pa.array([None if i == GAP else value for i, value in enumerate(amount)], pa.float64())
    payco = pa.table({"id": ids, "colour": [COLOURS[kind] for kind in kinds], "amount": known})
    return {"payco": payco, "shop": pa.table({"id": ids, "visits": visits})}


def new_tables() -> dict[str, pa.Table]:
    return party_tables(np.arange(100, 107), NEW, NEW_AMOUNT, NEW_VISITS)


def make_prediction_world(folder: Path, **fields: Any) -> PredictionWorld:
    """Train on columns in CSV files; all centroids are opened to payco. `fields` are added to all configurations."""
    job = {"layout": "vertical", "rows": 30, "features": {"payco": 4, "shop": 1}, "clusters": 3, "max_iter": 2}
    job |= {"products": "beaver", "tol": 0, "id": "id", "init": {"indices": [0, 1, 2]}}
    job |= {"reveal": {"centroids": ["payco"], "columns": "all"}}
    configs = make_configs(folder, triples={"store": "store"}, beam={"rows_per_shard": 3}, kmeans=job, **fields)
    old, new = party_tables(np.arange(30), KINDS, AMOUNT, VISITS), new_tables()
    encoding = {"payco": {"one_hot": ["colour"], "missing": "mean"}, "shop": {}}
    trained, prediction = {}, {}
    for name, config in configs.items():
        for table, file in ((old[name], "old.csv"), (new[name], "new.csv")):
            pa.csv.write_csv(table, folder / name / file)
        rounds = {"rounds": "stages" if name == "shop" else "auto"}
        own = {**encoding[name], "data": str(folder / name / "old.csv")}
        trained[name] = changed_config(config, beam=rounds, kmeans=own)
        prediction[name] = prediction_config(trained[name], folder / name / "new.csv", 7, {"assignments": ["payco"]})
    world = PredictionWorld(World(folder, trained), World(folder, prediction))
    deal_directly(trained)
    world.trained.train()
    deal_directly(prediction)
    return world


def expected_labels(world: PredictionWorld) -> Real:
    """The clusters of plaintext rows, scaled by the trained ranges, from the centroids that were opened to payco."""
    table = pq.read_table(world.trained.run_folder("payco").centroids)
    assert table.column_names == ["cluster", *(f"payco.colour={c}" for c in COLOURS), "payco.amount", "shop.visits"]
    centroids = np.array([table[name] for name in table.column_names[1:]]).T
    known = np.delete(AMOUNT, GAP)
    amount = np.where(np.arange(7) == GAP, known.mean(), NEW_AMOUNT)
    low = np.array([0, 0, 0, known.min(), VISITS.min()])
    width = np.array([1, 1, 1, np.ptp(known), np.ptp(VISITS)])
    rows = np.column_stack([NEW[:, None] == np.arange(3), amount, NEW_VISITS])
    return nearest((rows - low) / width, (centroids - low) / width)


def printed(renderable: Any) -> str:
    """Print a table of rich to a text."""
    from rich.console import Console

    console = Console(width=200)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()
