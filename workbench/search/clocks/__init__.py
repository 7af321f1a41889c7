"""Searches over power limits and clocks of a running job.

- `make`, `base`: A search by its name; the trials and the slowdown limit that every search keeps.
- `model_guided`: Our search. It uses every trial with its error, over all knobs together.
- `gpoeo`: GPOEO's golden section.
- `probe_gain`: The expected gain of a trial.
- `posterior`: A search with its space and earlier runs, for running cells and recurring jobs.
- `power_profile`: The next power limit to measure inside a recurring job.
"""
