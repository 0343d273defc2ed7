"""The protocol: rounds, the two executors that run them, one functionality of the paper per file."""
