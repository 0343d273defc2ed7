"""The files on a party's own disk: secrets, triple store, checkpoints, shards, results."""
