"""Records that a party keeps outside its storage: which masks it has used, and what it has opened."""
