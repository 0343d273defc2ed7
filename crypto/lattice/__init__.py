"""Products mod 2^64 between two parties by ring learning with errors (RLWE): matrix triples without a dealer."""
