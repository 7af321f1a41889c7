"""The period panel."""
