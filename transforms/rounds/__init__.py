"""Rounds and protocols, the interfaces they use, and the executors that run them."""
