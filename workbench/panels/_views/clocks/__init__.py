"""The clocks panel."""
