"""Correlations made of random OTs, one recipe for each kind."""
