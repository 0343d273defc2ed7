"""What a job will cost, and which engine computes its products."""
