"""The apply panel."""
