"""Searches over power limits and clocks of a running job.

    make, base         a search by its name; the probes and the bound that every search keeps
    model_guided       ours: every probe with its error, over all knobs together
    gpoeo              GPOEO's golden section
    probe_gain         what a probe is worth before it is made
    posterior          a search, its space and earlier runs: what running cells and recurring jobs both ask
    power_profile      which power limit to measure next inside a recurring job
"""
