"""Configurations and keys: written, filled in, changed, explained."""
