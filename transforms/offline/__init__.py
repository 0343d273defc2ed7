"""What makes and checks correlated randomness, from shapes alone."""
