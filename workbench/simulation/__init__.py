"""The simulated GPU: physics behind an NVML that is not there. Chosen by name, never a silent stand-in.

    physics        how fast and how hungry a card is at a setting (pure functions)
    catalogue      fitted cards and the six workloads of Zeus
    state          the machine's shared memory (standard library only)
    sensors        what the sensors make of true power (standard library only)
    nvml_library   the replacement of `pynvml.nvmlLib`
    machine        make, attach, step, hurt, remove; replay: a recording of a real driver in its place
    training       jobs that keep a simulated GPU busy; lane: one GPU of a job
    tenants        jobs that share a GPU, of any process (standard library only)
    activity       how busy the memory is in a phase, the one performance counter that is modelled
    graded         loads of graded intensity for `workbench profile-gpu`
    learning       accuracy over epochs, for trainings that have a target
"""
