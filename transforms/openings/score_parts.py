"""The parts of opened scores: what each of a party's own columns adds, and what all columns of the others add."""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from veilmeans.schemas.arrays import Array, Real

MOST_COLUMNS = 64
"""So many of its own columns explain an outlier, those that add most; the others are one line."""
OTHER_COLUMNS, OTHER_PARTIES = "(other own columns)", "(columns of other parties)"


def list_parts(
    columns: Sequence[str], moved: Real, differences: Real, scores: Real | None, complete: bool
) -> dict[str, Array]:
    """List the parts of each row's score, the largest of its own columns first, as many lines for each row.

    `moved`: x − μ in normalised units, rows × columns; `differences`: in original units. `scores`: of whole rows, where
    they were opened; `complete`: the own columns are all columns. "share": of the whole score, where it is known.
    """
    contributions = moved**2
    most = min(MOST_COLUMNS, len(columns))
    order = np.argsort(-contributions, axis=1, kind="stable")[:, :most]
    names = np.array(columns, dtype=object)[order]
    added = np.take_along_axis(contributions, order, axis=1)
    shown = np.take_along_axis(differences, order, axis=1)
    for name, rest in _rests(contributions.sum(axis=1), added, len(columns) > most, scores):
        names = np.concatenate([names, np.full((len(moved), 1), name, dtype=object)], axis=1)
        added = np.concatenate([added, rest[:, None]], axis=1)
        shown = np.concatenate([shown, np.full((len(moved), 1), np.nan)], axis=1)
    lines: dict[str, Array] = {"column": pa.array(names.reshape(-1), pa.string())}
    lines |= {"difference": shown.reshape(-1), "contribution": added.reshape(-1)}
    if scores is not None or complete:
        whole = added.sum(axis=1, keepdims=True)
        none = np.where(np.isnan(added), np.nan, 0.0)  # of a centroid that was withheld
        lines["share"] = np.divide(added, whole, out=none, where=whole > 0).reshape(-1)
    return lines


def _rests(own: Real, listed: Real, more: bool, scores: Real | None) -> Iterator[tuple[str, Real]]:
    """Yield what is not listed column by column: other own columns, and the columns of all others."""
    if more:
        yield OTHER_COLUMNS, own - listed.sum(axis=1)
    if scores is not None:
        yield OTHER_PARTIES, np.maximum(0.0, scores - own)
