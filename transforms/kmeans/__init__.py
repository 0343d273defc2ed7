"""K-means on shares: distance, assignment, update, the iteration, openings."""
