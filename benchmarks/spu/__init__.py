"""SPU as a peer of the benchmarks: its environment, its K-means, and runs of it."""
