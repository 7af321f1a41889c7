"""Configurations tried: one trial, where trials run, sweeps, jobs that recur.

    trial, executors     one configuration applied, run and measured; a process for each GPU, or Dask
    sweep                many configurations, until the budget is spent or the frontier is known
    job, recurrence      a recurring job; one run of it
    probe                one probe of a running job, tuned or recurring; the energy of a stretch
    iteration_sources    where iterations come from: marks, a counter, the power trace;
                         `harmonic_fit` is the period in a few seconds of power
    power_profiling      power limits profiled inside a recurring job
    history              the history of a recurring job
    comparison           two ways of working, in turns; `difference` is its statistics
    workloads            trainings to try it all on
"""
