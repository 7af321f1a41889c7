"""The simulated GPU: physics behind a simulated NVML. It is used only when it is requested by name.

    physics        speed and power of a card at a setting (pure functions)
    catalogue      fitted cards and the six workloads of Zeus
    state          the machine's shared memory (standard library only)
    sensors        what the sensors make of true power (standard library only)
    nvml_library   the replacement of `pynvml.nvmlLib`
    machine        make, attach, step, hurt, remove; replay: a recording of a real driver in its place
    training       jobs that keep a simulated GPU busy; lane: one GPU of a job
    tenants        jobs that share a GPU, of any process (standard library only)
    activity       memory activity in a phase, the only modelled performance counter
    graded         loads of graded intensity for `workbench profile-gpu`
"""
