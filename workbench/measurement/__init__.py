"""From samples of a GPU to the joules of a cell. Importing it loads neither numpy nor polars.

    sampler, ring, edges, recorder    the sampling process, its file, the sensors' refreshes; traces
    energy_estimate, sensor_updates   the energy between two moments, with its error; by what a sensor showed
    counter_kind, sampled_counter     what this driver's energy counter really is; one that only adds samples
    meter, session, synchronise       windows; one process's GPUs, meter and store; waiting for queued work
    blocks, repeats, setting_segments what a measured block or loop leaves behind; runs as one; its settings
    marks, work, iterations, follow   what the training marks or counts; iterations that the trace shows
    doctor, gpu_table, foreign        checks of this machine; its GPUs; other processes that use them
    sinks                             joules to Weights & Biases, MLflow, TensorBoard, Prometheus
    api                               `workbench.measure`, `track` and `iterations_of`
"""
