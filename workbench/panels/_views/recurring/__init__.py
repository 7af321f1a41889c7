"""The recurring panel."""
