"""Column sums and one inner product over the columns of several companies: a protocol of one's own.

  1. share      every party's columns: a uniform share ⟨x⟩ for each party
  2. multiply   the first and the last column, row by row: ⟨z⟩ = ⟨x·y⟩, with triples of the dealer
  3. add up     each party adds its shares over all rows of all shards; nothing is sent
  4. open       the sums: the only values that anyone learns

`describe` states this once. The bare executor, the Beam executor and the trace run it. Numbers are integers mod 2^64.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from veilmeans.protocols import OPEN, SHARE, Arrays, Keep, Load, Over, Party, PartyContext, ShardShape, Step, multiply


def _pick_factors(_: Party, state: Arrays) -> Arrays:
    return {"x": state["x"], "left": state["x"][:, :1].copy(), "right": state["x"][:, -1:].copy()}


def _append_product(_: Party, state: Arrays) -> Arrays:
    return {"x": np.hstack([state["x"], state["product"]])}


_MULTIPLY = multiply("left", "right", "product").after(_pick_factors).then(_append_product)
SHARE_AND_MULTIPLY = Step((SHARE + _MULTIPLY).named("columns"), "shares of all columns and of the product")
OPEN_SUMS = Step(OPEN.named("sums"), "sums of all columns and of the product")


@dataclass(frozen=True)
class ColumnSums:
    """One party's side: its columns of each row shard, and the file for the opened sums."""

    context: PartyContext
    shards: tuple[np.ndarray, ...]
    result: Path
    parameters: Any = None

    def shard_numbers(self, over: Over) -> Sequence[int]:
        return range(len(self.shards)) if over is Over.ROWS else (0,)

    def add_up(self) -> Any:
        return _add_shares


def _add_shares(parts: Sequence[Arrays]) -> Arrays:
    shares = [part["x"] for part in parts if "x" in part]
    return {"x": np.sum(shares, axis=0, dtype=np.uint64)} if shares else {}


def _sum_rows(_parameters: Any, _: Party, state: Arrays) -> Mapping[int, Arrays]:
    return {0: {"x": state["x"].sum(axis=0, dtype=np.uint64)}}


def _read(job: ColumnSums, _: Any, shard: int) -> Arrays:
    return {"x": job.shards[shard].astype(np.uint64)}


def _shapes(widths: Sequence[int], shape: ShardShape) -> list[dict[str, Any]]:
    return [{"x": ((shape.rows, width), "uint64")} for width in widths]


def _write(job: ColumnSums, _: Any, _shard: int, state: Arrays) -> None:
    job.result.write_text(json.dumps(state["x"].view(np.int64).tolist()))


def describe(run: Any) -> Any:
    """Describe the job for any executor."""
    shared = run.rounds(SHARE_AND_MULTIPLY, run.shards(Over.ROWS, Load(_read, _shapes)))
    return run.keep(Keep("result", _write), run.rounds(OPEN_SUMS, run.total(Over.ONE, _sum_rows, shared)))
