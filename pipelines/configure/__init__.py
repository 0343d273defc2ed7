"""Write, fill in and change configurations and keys."""
