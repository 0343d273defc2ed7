"""A party's data files in: read, checked, scaled, encoded."""
