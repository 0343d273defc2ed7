"""Fuzzing of all that a party reads from others, or from its own disk: `python -m benchmarks.fuzz`."""
