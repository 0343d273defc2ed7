"""Rounds that open results, each to the parties that the reveal policy names."""
