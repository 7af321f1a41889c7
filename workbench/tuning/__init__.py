"""A running job's best power limit and clocks: found online, held and watched; or set by hand.

    api, driver                       `workbench.tune`; who calls `advance`: a thread, or a stepped clock
    state_machine, core, choice,      the loop: its states, what each needs, the best setting by what is
    hold, commands, results, params   known, holding it, what a person may ask meanwhile, what it reports,
                                      its constants
    iteration_sources,                where iterations come from: marks, a counter, the power trace, a rate;
    detect_iterations, harmonic_fit   which of them a job has; the period in a few seconds of power
    probe, probe_table, actuator,     one probe; all of them as a frame; settings put to GPUs and taken back;
    interval_energy                   the energy of a stretch of time
    change_detection                  whether the job is still the one that was tuned, and alone
    accounts, ledger                  what every stretch took, and what was saved
    models, model_store, posterior,   models of this GPU; the search, its space, and questions to both
    options, features
    manual, selection                 a setting applied by hand, read back, undone; what was chosen last
    gpu_profile                       `workbench profile-gpu`
"""
