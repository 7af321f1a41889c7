"""Decides what to try next. It uses no device, clock or storage; randomness enters as `rng`.

    objective    a cost of time and energy, lower is better
    space        settings on offer: clocks that a card pairs, power limits, or both
    frontier     the energy-time frontier of observations, and its certainty
    tradeoff     the default to compare with, slowdown limits, choices, and their savings
    earlier      measurements of earlier runs, weighted by their agreement
    batch_size   policies for the batch size of a recurring job
    clocks       searches over the power limit and clocks of a running job
    surrogates   models of time and energy over settings, from few measurements
"""
