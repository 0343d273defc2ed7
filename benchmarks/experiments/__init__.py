"""The paper's experiments, Q1 to Q5: `python -m benchmarks.experiments`, results as JSON, figures and one page."""
