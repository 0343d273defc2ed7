"""All parties on one machine: demo, trials, the scikit-learn estimator."""
