"""openmined.psi as a peer of the benchmarks: its environment, and a private set intersection by it."""
