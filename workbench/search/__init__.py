"""What to try next. No device, no clock, no storage; randomness comes in as `rng`.

    objective    one number of a time and an energy, lower is better
    space        settings to choose among: clocks that a card pairs, power limits, or both
    frontier     the energy-time frontier of observations, and how sure it is
    tradeoff     the default to compare with, bounds, choices, and what a choice saves
    batch_size   policies for the batch size of a recurring job
    clocks       searches over the power limit and clocks of a running job
    surrogates   models of time and energy over settings, from few measurements
"""
