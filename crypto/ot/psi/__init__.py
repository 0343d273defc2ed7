"""Private set intersection on correlated OTs: hashes of ids, oblivious key-value stores, and an OPRF."""
