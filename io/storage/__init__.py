"""What a party keeps on its own disk: secrets, triple store, checkpoints, shards, results."""
