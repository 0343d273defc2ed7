"""The paper's findings beside what was measured. Whether they hold is computed; where not, the page says why."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.experiments.paper_numbers import PAPER_Q1, PAPER_Q5
from benchmarks.experiments.parts import Values
from benchmarks.experiments.sparse_scaling import (
    ANEW,
    DENSE,
    ROWS_WANTED,
    WIDE_COLUMNS,
    WIDE_ZEROS,
    q4_by_columns,
    q4_by_zeros,
    q4_wide,
)
from benchmarks.experiments.tables import (
    Q1,
    STEPS,
    number,
    of_m_kmeans,
    of_paper,
    parts_by,
    percent,
    q5_coefficients,
    ratio,
)


@dataclass(frozen=True)
class Finding:
    """A finding of the paper, our numbers, whether they say the same, and the reason if they do not."""

    paper: str
    ours: str
    holds: bool
    reason: str

    def __str__(self) -> str:
        verdict = "**The same.**" if self.holds else f"**It differs**: {self.reason}"
        return f"- The paper: {self.paper} Ours: {self.ours} {verdict}"


def _q1(results: Values) -> Iterator[Finding]:
    q1 = Q1.of(results)
    jobs = [job for job in q1.jobs if of_paper(job, "online_s") is not None]
    for unit, what in (("s", "time"), ("mb", "traffic")):
        totals = [ratio(of_m_kmeans(job, unit), q1.both_phases(job, "ot", unit)) for job in jobs]
        found = [each for each in totals if each is not None]
        if not found:
            continue
        yield Finding(
            f"both phases together cost as much as M-Kmeans ({what}, within a fifth).",
            f"M-Kmeans needs {span(found)} times ours.",
            all(0.8 <= each <= 1.25 for each in found),
            "our triples come from silent OT and lattices instead of IKNP and one Gilboa product for each value, and "
            "our comparisons open masked values instead of evaluating a circuit for 64 bits. Times are also of other "
            "machines.",
        )
    phases = [ratio(q1.value(job, "ot", "offline_mb"), q1.value(job, "ot", "online_mb")) for job in q1.jobs]
    shares = [each for each in phases if each is not None]
    printed = [each["offline_mb"] / each["online_mb"] for each in PAPER_Q1.values()]
    yield Finding(
        f"the offline phase sends more than the online phase, {span(printed)} times as much.",
        f"{span(shares)} times as much, by `ot`.",
        all(each > 1 for each in shares),
        "silent OT makes correlations from seeds, so that the offline phase sends little for each row: a set-up that "
        "does not depend on n, and then less than the online phase opens.",
    )


def _q2(results: Values) -> Iterator[Finding]:
    values = parts_by(results, "provider")["ot",]
    for unit, what in (("s", "time"), ("mb", "traffic")):
        ratios = {step: values[step][f"offline_{unit}"] / values[step][f"online_{unit}"] for step in STEPS}
        each = ", ".join(f"{step} {number(value)}" for step, value in ratios.items())
        all_steps = values[f"offline_{unit}"] / values[f"online_{unit}"]
        yield Finding(
            f"every step costs more offline than online ({what}).",
            f"offline ÷ online is {each}; {number(all_steps)} for the whole run.",
            all(value > 1 for value in ratios.values()),
            "where a step has few values and many rounds, its online time is round trips, and its offline phase, all "
            "correlations at once, has few of them."
            if unit == "s"
            else "silent OT makes correlations from seeds, and sends little for each.",
        )


def _q3(results: Values) -> Iterator[Finding]:
    found = parts_by(results, "columns", "vectorised")
    columns = sorted({key[0] for key in found})
    for phase in ("online", "offline"):
        gains = {}
        for unit in ("s", "mb"):
            gains[unit] = [found[d, False][f"{phase}_{unit}"] / found[d, True][f"{phase}_{unit}"] for d in columns]
        times, bytes_ = (", ".join(number(each) for each in gains[unit]) for unit in ("s", "mb"))
        yield Finding(
            f"vectorisation gains {phase}, and more where d is larger.",
            f"for d = {', '.join(map(str, columns))} one product for each value takes {times} times as long, and sends "
            f"{bytes_} times as much.",
            gains["s"][-1] > gains["s"][0] and min(gains["s"]) > 1,
            "with all products of an iteration in one round, as here, both ways wait for as many round trips, and "
            "these dominate while the messages are small."
            if phase == "online"
            else "a lattice ciphertext has thousands of slots: at these sizes a matrix triple costs as much for eight "
            "columns as for two.",
        )


def _q4(results: Values) -> Iterator[Finding]:
    by_columns, wide = q4_by_columns(results), q4_wide(results)
    columns = sorted(by_columns["sparse"])
    first, last = columns[0], columns[-1]
    slopes = {
        name: (line[last].seconds - line[first].seconds) / (2 * (last - first)) for name, line in by_columns.items()
    }
    once = (
        "our dense engine sends X − U once in a run, and the paper's in each iteration. The sparse engine's work on "
        "ciphertexts comes in each iteration, so that it needs wide matrices to win: with "
        f"{percent(WIDE_ZEROS)} zeros and d = {2 * WIDE_COLUMNS:,} the dense engine takes "
        f"{number(wide[DENSE].seconds / wide['sparse'].seconds)} times as long."
    )
    yield Finding(
        "(a) the slope of the time by d is smaller with the sparse engine.",
        f"{number(slopes['sparse'])} s a column with it and {number(slopes[DENSE])} without; "
        f"{number(slopes[ANEW])} if X were sent in each iteration.",
        slopes["sparse"] < slopes[DENSE],
        f"{once} With 20 % zeros it computes with four of five values.",
    )
    dense, sparse = q4_by_zeros(results)
    n = ROWS_WANTED[0]
    gains = {name: [line[n].seconds / each[n].seconds for each in sparse.values()] for name, line in dense.items()}
    shown = {name: ", ".join(number(each) for each in found) for name, found in gains.items()}
    yield Finding(
        "(b) the sparse engine gains, and more with more zeros.",
        f"dense ÷ sparse at n = {n:,} for {', '.join(map(percent, sparse))} zeros: {shown[DENSE]}; "
        f"if X were sent in each iteration, {shown[ANEW]}.",
        gains[DENSE] == sorted(gains[DENSE]) and gains[DENSE][-1] > 1,
        once,
    )
    most = sparse[max(sparse)]
    saved = {name: [line[n].seconds - most[n].seconds for n in ROWS_WANTED] for name, line in dense.items()}
    seconds = {name: ", ".join(f"{each:,.0f}" for each in found) for name, found in saved.items()}
    yield Finding(
        "(b) it saves more with more rows.",
        f"at {percent(max(sparse))} zeros and n = {', '.join(f'{n:,}' for n in ROWS_WANTED)} it saves "
        f"{seconds[DENSE]} s; if X were sent in each iteration, {seconds[ANEW]} s.",
        0 < saved[DENSE][0] < saved[DENSE][-1],
        "both engines' costs grow with n alike, and at this d ours without ciphertexts is the cheaper one.",
    )


def _q5(results: Values) -> Iterator[Finding]:
    for data, each in q5_coefficients(results).items():
        joint, alone = np.mean(each.shares), [np.mean(values) for values in each.alone.values()]
        yield Finding(
            f"together {PAPER_Q5['together on shares']}, by one party alone {PAPER_Q5['alone']}.",
            f"{data}: together {joint:.2f}, alone {' and '.join(f'{value:.2f}' for value in alone)}.",
            bool(joint > max(alone)),
            "one party's columns alone say as much about these labels; joint columns add nothing that K-means finds.",
        )


FINDINGS: dict[str, Callable[[Values], Iterator[Finding]]] = {"q1": _q1, "q2": _q2, "q3": _q3, "q4": _q4, "q5": _q5}


def span(values: Sequence[float]) -> str:
    """The least and the largest of some numbers."""
    return f"{number(min(values))} to {number(max(values))}"
