"""Additive homomorphic encryption: two schemes behind one interface, packing, multi-exponentiation."""
