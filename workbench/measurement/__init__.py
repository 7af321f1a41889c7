"""From samples of a GPU to the joules of a cell. Importing it loads neither numpy nor polars.

    sampler, ring, edges, recorder    the sampling process, its file, the sensors' refreshes; traces
    energy_estimate, sensor_updates   the energy between two moments, with its error; by what a sensor showed
    meter, session, synchronise       windows; one process's GPUs, meter and store; waiting for queued work
    blocks, repeats                   what a measured block or loop leaves behind; several runs as one
    marks, callbacks, iterations      iterations that the training marks, or the trace shows
    follow                            the period of a running job
    store, report, gpu_table          measurements on disk; in words, HTML and JSON; which GPUs are here
    log_readers                       traces that other tools have written
    api                               `workbench.measure`, `track` and `iterations_of`
"""
