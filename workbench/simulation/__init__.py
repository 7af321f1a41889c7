"""The simulated GPU: physics behind a simulated NVML. It is used only when it is requested by name.

    physics        speed and power of a card at a setting (pure functions)
    catalogue      fitted cards and the six workloads of Zeus
    state          the machine's shared memory (standard library only)
    sensors        sensor readings from true power (standard library only)
    nvml_library   the replacement of `pynvml.nvmlLib`
    machine        creates, attaches, steps, breaks and removes machines
    replay         answers from a recording of a real driver
    training       jobs that keep a simulated GPU busy
    lane           one GPU of a job
    tenants        jobs that share a GPU, of any process (standard library only)
    activity       memory activity in a phase, the only modelled performance counter
    graded         loads of graded intensity for `workbench profile-gpu`
    learning       accuracy over epochs, for trainings that have a target
"""
