"""What crosses a boundary: arrays, shards, messages, addresses, configuration, errors."""
