"""Primitives on shares, one gadget per file."""
