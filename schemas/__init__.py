"""Data that cross a boundary: arrays, shards, messages, addresses, configuration, names of files, errors."""
