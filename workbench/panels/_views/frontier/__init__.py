"""The frontier panel."""
