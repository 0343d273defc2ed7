"""Runs with all parties on one machine: the demo, trials, the scikit-learn estimator."""
