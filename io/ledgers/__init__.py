"""What a party remembers outside its storage: which masks it has used, and what it has opened."""
