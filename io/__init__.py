"""Everything that leaves the process: inputs, keys, exchange, scratch, triples, results."""
