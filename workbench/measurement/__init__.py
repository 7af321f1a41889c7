"""From samples of a GPU to the joules of a cell. Importing it loads neither numpy nor polars.

    sampler, ring, edges, recorder    the sampling process, its file, the sensors' refreshes; traces
    energy_estimate, sensor_updates   the energy between two moments, with its error; from a sensor's values
    counter_kind, sampled_counter     the behaviour of this driver's energy counter; one that adds up samples
    meter, session, synchronise       windows, GPUs and store of a process; waiting for queued work
    blocks, repeats,                  results of a measured block or loop, repeats as one,
    setting_segments                  stretches under one setting
    marks, work, iterations, follow   marks and counts of the training; iterations from the trace
    doctor, gpu_table, foreign        checks of this machine, its GPUs, other processes that use them
    sinks                             joules to Weights & Biases, MLflow, TensorBoard, Prometheus
    api                               `workbench.measure`, `track` and `iterations_of`
"""
