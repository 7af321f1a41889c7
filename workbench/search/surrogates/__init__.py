"""Models of time and energy over settings, from few measurements."""
