"""The power panel."""
