"""The log panel."""
