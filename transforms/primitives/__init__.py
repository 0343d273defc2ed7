"""One gadget of secure arithmetic per file."""
