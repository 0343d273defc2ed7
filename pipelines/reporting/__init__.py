"""What a run has cost, opened and come to, for people."""
