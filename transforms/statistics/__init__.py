"""Quantities over all rows: joint statistics, outliers, the largest values, a weighted choice."""
