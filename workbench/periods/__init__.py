"""Iteration periods in power traces: found in a recorded one, followed in a running one. No device."""
