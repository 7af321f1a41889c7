"""A running job's best power limit and clocks: found online, held and watched; or set by hand.

    api, driver                       `workbench.tune`; the caller of `advance`: a thread, or a stepped clock
    state_machine, phases             the tuner: its lock and commands; its states, each an object that
                                      returns the next one
    tuned_job, gpus, record,          shared by the states: the job with a baseline, its GPUs, the events,
    options, params, results          the options, the constants; views and results
    choice, models, features          the best known setting; a model of this GPU, and the features
                                      that it asks for
    detect_iterations                 which source of iterations a job has (`experiments.iteration_sources`)
    change_detection                  whether the job is still the one that was tuned, and alone
    accounts                          what every stretch took, and what was saved
    manual                            a setting applied by a person, read back, undone
    gpu_profile                       `workbench profile-gpu`
"""
