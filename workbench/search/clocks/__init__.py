"""Searches over power limits and clocks of a running job."""
