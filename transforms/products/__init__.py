"""Cross products of a party's matrix and a shared one, and their two engines."""
