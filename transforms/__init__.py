"""The protocol: rounds and the executors that run them, one functionality of the paper per file."""
