"""The figures of DESIGN §9 and the paper's tables: `python -m benchmarks.NAME --json FILE`."""
