"""One folder per panel."""
