"""The titles and texts of the page's questions: what was run, and how it differs from the paper's experiment."""

from benchmarks.experiments.tables import PAPER_Q5

TITLES = {
    "q1": "Q1: time and traffic (the paper's Tables 1 and 2)",
    "q2": "Q2: online and offline by step",
    "q3": "Q3: vectorised, or one product for each value",
    "q4": "Q4: with and without the sparse engine",
    "q5": "Q5: fraud found by outliers",
}
_Q1 = """
Two parties, d = 2, t = 10. The paper's times are of its own machines and C++; ours and SPU's are of this one.
Ours online is from the handshake to the opened results, with mutual TLS. SPU's SEMI2K makes its triples on the
way, with a dealer that is not safe; CHEETAH goes without one. Offline traffic with a dealer is the size of both
parties' stores, without one the messages between them. M-Kmeans has no phases: its numbers are of everything.
–: not run, or not in the paper.
"""
_Q2 = """
n = 1,000, d = 2, k = 4, t = 20 over a WAN (20 Mbit/s, 40 ms). Online seconds of a step are the slower party's
computing, delivering and waiting; of steps beside each other both wait, so that they add up to more than the
whole. Offline by `ot`: seconds and MB of a step are counted, set-up included, as if the store had nothing else,
by the formulas of `plan`; the last line is measured. The paper has a figure without numbers, of a slower
offline phase than online phase.
"""
_Q3 = """
n = 1,000, k = 4, t = 20, the distance step over a WAN. By value: a Beaver triple for each of the n·d·k
products, all products of an iteration in one round (`benchmarks/experiments/unvectorised.py`). Vectorised: X is
masked once in a run, and a matrix triple serves an iteration. Offline by `ot`, counted, set-up included. The
paper has figures without numbers, in which vectorisation gains more where d is larger, online and offline.
"""
_Q4 = """
k = 2, t = 10, the distance step over a WAN. Numbers with a star are scaled: (a) in proportion from a run of
fewer rows, (b) on the line through two sizes; – where noise makes the line fall. Without its sparse engine the
paper masks X anew in each iteration; ours sends it once in a run. The dense engine's costs do not depend on
zeros. The paper has figures without numbers, in which the sparse engine gains more with more columns, zeros and
rows.
"""
_Q5 = f"""
The paper, on data that are not public: {PAPER_Q5["together on shares"]} together, {PAPER_Q5["alone"]} by the
payment company alone. Here: K-means with k = 5 from random rows, as many outliers as there are frauds; mean and
deviation.
"""
TEXTS = {name: text.strip() for name, text in zip(TITLES, (_Q1, _Q2, _Q3, _Q4, _Q5), strict=True)}
