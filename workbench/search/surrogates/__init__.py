"""Models of time and energy over settings, from few measurements.

    posterior                       prior samples and deviations, given measurements: for sweeps
    physics_prior                   prior samples: physics of any card and job
    expected_hypervolume            a sweep's space, and the largest growth of its frontier
    curve_priors                    curves over batch sizes, Gaussian given their shape
    predictor                       time and energy predicted from a workload's counters
"""
