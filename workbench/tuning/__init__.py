"""A running job's best power limit and clocks: measured online and held; or set by hand.

    api, driver                       `workbench.tune`; the caller of `advance`: a thread, or a stepped clock
    state_machine, phases             the tuner: its lock and commands; its states, each an object that
                                      returns the next one
    tuned_job, gpus, record,          shared by the states: the work that is tuned, its GPUs, the events,
    options, results                  the options; views and results
    blocks                            measures one setting over whole iterations
    ledger                            time and energy at each setting, and what was saved
    models, features                  a model of this GPU, and the features that it asks for
    detect_iterations                 which source of iterations a job has (`experiments.iteration_sources`)
    change_detection                  whether the GPUs work, and for this job alone
    balance                           lower clocks for GPUs that wait for others of their job
    manual                            a setting applied by a person, read back, undone
    gpu_profile                       `workbench profile-gpu`
"""
