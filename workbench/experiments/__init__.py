"""Configurations tried: one trial, where trials run, sweeps, jobs that recur.

    trial, executors     one configuration applied, run and measured; a process for each GPU, or Dask
    sweep                many configurations, until the budget is spent or the frontier is known
    job, recurrence      a recurring job; one run of it
    power_profiling      power limits profiled inside a running job
    history              the history of a recurring job
    comparison           two ways of working, in turns; `difference` is its statistics
    pytest_plugin        tests that may fail on joules
    workloads            trainings to try it all on
"""
