"""The cluster panel."""
