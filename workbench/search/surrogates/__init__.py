"""Models of time and energy over settings, from few measurements.

    clock_prior, response_surface       physics of an iteration over clocks and limits; corrected by probes
    sweep_prior, expected_hypervolume   time and energy over a sweep's space; where the frontier grows most
    curve_priors                        curves over batch sizes, Gaussian given their shape
    predictor, prediction               time and energy predicted from a workload's counters; its parts
"""
