"""Pure mathematics on arrays and bytes. No Beam, no files, no network."""
