"""Cases of bad input to `veilmeans train`: what is changed in a world, and how each started party must end."""

import errno
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from support.commands import Ended, Strike
from support.run_results import company_values_in, error_sentences
from support.worlds import World, changed_config
from veilmeans.io.storage.triple_store import TripleStore
from veilmeans.pipelines.session.kmeans_from_config import traced_job

Change = Callable[[World], object]
Fields = Mapping[str, Any]
Expected = tuple[int, Sequence[str]]
"""Exit code, and what the error sentence must name; "{data}" and the like stand for paths."""
FULL_DISK = ("disk", "full")
SECRET_WORD = "secret-word"
"""A value of the data in some cases, which no output may contain."""


@dataclass(frozen=True)
class Case:
    """A mistake, and how each party that is started must end."""

    expected: Mapping[str, Expected]
    fields: Mapping[str, Fields] = field(default_factory=dict)
    change: Change | None = None
    strike: Strike | None = None
    world: str = "vertical"
    kind: str = "gateway"

    def run(self, worlds: Mapping[str, World], folder: Path) -> tuple[World, dict[str, Ended]]:
        world = worlds[self.world].copied(folder, exchange={"kind": self.kind})
        if self.change is not None:
            self.change(world)
        running = {name: world.start(name, self.strike, self.fields.get(name)) for name in self.expected}
        return world, {name: each.wait() for name, each in running.items()}


RunCase = Future[tuple[World, dict[str, Ended]]]


def start_cases(
    pool: ThreadPoolExecutor, cases: Mapping[str, Case], worlds: Mapping[str, World], folder: Path
) -> dict[str, RunCase]:
    """Run all cases, several at a time: where terms differ, parties compare them again for seconds."""
    return {
        name: pool.submit(case.run, worlds, folder / str(number)) for number, (name, case) in enumerate(cases.items())
    }


def check_refusal(world: World, name: str, ended: Ended, expected: Expected) -> None:
    """Check the exit code, and one sentence that names what is wrong, without a traceback and without data."""
    (exit_code, output), (code, named) = ended, expected
    sentences = error_sentences(output)
    assert (exit_code, len(sentences)) == (code, 1), output
    assert "Traceback" not in output
    assert output.splitlines()[-1] == f"error: {sentences[0]}"
    places = {"folder": world.folder, "data": world.data(name), "store": world[name].store_folder}
    assert [part for part in named if part.format(**places) not in sentences[0]] == [], sentences[0]
    assert SECRET_WORD not in output
    assert company_values_in(output) == []


def job(**fields: Any) -> Fields:
    return {"kmeans": fields}


def full_disk(path: str, number: int = 1) -> Strike:
    return Strike(path, number, "os.rename", errno.ENOSPC)


# What is done to a world.
def rewritten(change: Callable[[pa.Table], pa.Table], party: str = "payco") -> Change:
    """Rewrite the party's data file."""

    def apply(world: World) -> None:
        file = world.data(party)
        pq.write_table(change(pq.read_table(file)), file)

    return apply


def with_value(column: str, row: int, value: float | None) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        values = table.column(column).to_pylist()
        values[row] = value
        return table.set_column(table.schema.get_field_index(column), column, pa.array(values, pa.float64()))

    return change


def with_ids(ids: Callable[[list[int]], Sequence[int]]) -> Callable[[pa.Table], pa.Table]:
    return lambda table: table.set_column(0, "id", pa.array(ids(table.column("id").to_pylist())))


def change_manifest(world: World, party: str, **fields: Any) -> None:
    """Change the manifest of the party's store."""
    store = TripleStore.open(world[party].store_folder)
    store.folder.manifest.unlink()
    replace(store, manifest=replace(store.manifest, **fields)).complete()


def fit_store(party: str, fields: Fields) -> Change:
    """Make the party's store fit the changed job, so that the job differs at the handshake only."""
    return lambda world: change_manifest(world, party, plan=traced_job(changed_config(world[party], **fields)).digest())
