"""The page docs/scale.md: the cost model's formulas, and tables of what `benchmarks.scale_model` measured."""

from collections.abc import Sequence

from benchmarks.figures import Figure

_HEAD = """# Scale: what many rows and columns cost

Written by `python -m benchmarks.scale_model --large --json FILE --page docs/scale.md` (two parties and a dealer as
processes on one machine with 2 cores; vertical, 8 columns, 5 clusters, 2 iterations). All sizes are run as large ones
are by default: each round is a stage, states between stages are on disk. All numbers are those of that run. Sizes that
it did not run are the model's: **nobody has run 10^8 or 10^9 rows, or 10^6 columns at these numbers of rows.**

## The model

For n rows, t iterations and M parties:

- **Bytes and rounds**: those of `veilmeans plan`, which traces the protocol on shapes. Bytes are proportional to n
  (k, d and t fixed); rounds do not depend on n. The run checks that the parties sent what the plan says.
- **WAN hours** = (rounds × (half a round trip + 4 ms) + bytes ÷ rate) ÷ 3600, at the rate and round trip of `plan`'s
  WAN (20 Mbit/s, 40 ms). A faster link divides them: above some 10^7 rows the rate is nearly all of it.
- **Core-hours** = c × n ÷ 3600, c the processor time for each row of all processes (offline and train, both parties
  and the dealer), from the largest run. Time on w cores is core-hours ÷ w as long as there are at least w row shards;
  the rounds of a stage end at a barrier.
- **Worker memory**: a worker has a few row shards at a time (`beam.rows_per_shard`, by default 65,536), and states
  between stages are on disk (by default above 2^21 rows; up to these they are in memory, which takes less time, and
  memory grows with n: "by default, 10^6 rows" is such a run, with more memory than 10^7 rows). So peak memory should
  not depend on n. The table of growth says whether it does: **a bold number there has missed its target, and then
  memory at more rows is not known from this page.** Peaks are the kernel's `ru_maxrss`, which counts mapped pages of
  files (some 50 to 100 MiB of libraries, and of stores and states in work), though the kernel can take them back.
- **What grew, and why it does less now**: malloc and Arrow's own allocator each kept holes of freed memory, more with
  each shard. Arrow shares malloc now, which returns them after each 128 MiB of arrays, and
  after each row shard while a dealer makes a store (`io/storage/freed_memory.py`). numba and LLVM, some 140 MiB, came
  with the products of some 4·10^6 rows; now only wide products bring them (columns × clusters of a party
  from 256: such jobs change over after some 10^9 multiplications, once, unless `VEILMEANS_COMPILE=never`).
- **What still grows**: k-means++, outliers and explanations join states by Beam's own shuffle, which DirectRunner
  keeps in memory; this run has none of them.
- **Shuffle volume**: with states on disk Beam shuffles the shards' numbers and file names, a few hundred bytes for
  each shard and round. The states themselves go through files: "written to disk by a party" is the kernel's count of
  all that the process of `train` wrote (prepared rows, states, messages, checkpoints), v × n. A cluster whose workers
  share nothing moves up to as much through its shuffle or object store.
- **Columns**: a dense party sends each masked row once, 8 bytes a value, which ends at some 10^4 columns. For sparse
  data the homomorphic engine sends ciphertexts of the products' size, so bytes do not depend on the zeros; the table
  has the plan's. Its processor time is in [sparse.md](sparse.md) and is not part of the constant c.
"""


def page(figures: Sequence[Figure]) -> str:
    """The page with these figures."""
    groups = dict[str, list[tuple[str, Figure]]]()
    for figure in figures:
        group, _, what = figure.name.partition(": ")
        groups.setdefault(group, []).append((what, figure))
    measured = {
        name: lines for name, lines in groups.items() if name.endswith(" rows") and not name.startswith("model")
    }
    modelled = {name: lines for name, lines in groups.items() if name.startswith("model")}
    growth = {name: lines for name, lines in groups.items() if " to " in name}
    parts = [
        _HEAD,
        "## Measured\n",
        _table(measured),
        "\n## Growth\n",
        "Targets: exponents of time at most 1.05; peak memory from 10^6 to 10^7 rows within 10 %.\n",
        _table(growth),
        "\n## Constants\n",
        _table({"of the largest run": groups["constant"]}),
        "\n## By the model\n",
        _table({name.removeprefix("model, "): lines for name, lines in modelled.items()}),
    ]
    return "\n".join(parts) + "\n"


def _table(groups: dict[str, list[tuple[str, Figure]]]) -> str:
    """A column for each group, a line for each of its figures."""
    lines = list(dict.fromkeys((what, figure.unit) for group in groups.values() for what, figure in group))
    values = {(name, what): _shown(figure) for name, group in groups.items() for what, figure in group}
    rows = [
        f"| {what}{f' ({unit})' if unit else ''} | {' | '.join(values.get((name, what), '') for name in groups)} |"
        for what, unit in lines
    ]
    return "\n".join([f"| | {' | '.join(groups)} |", f"|---|{'---|' * len(groups)}", *rows])


def _shown(figure: Figure) -> str:
    value = (
        f"{figure.value:,.0f}"
        if abs(figure.value) >= 100 or figure.value == int(figure.value)
        else f"{figure.value:.3g}"
    )
    return value if figure.met is not False else f"**{value}** (target {figure.target:g})"
