"""Correlated randomness: who needs how much of it, and how it is made."""
