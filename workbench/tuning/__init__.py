"""What the door `tuning` is made of: the loop that finds a running job's best setting, holds it, and watches.

    states, asking   what a tuner tells of itself: a view while it goes on, a result when it has ended; what it is asked
    rhythm           how long an iteration takes in a few seconds of power readings, when its length is roughly known
    sources          where iterations come from: marks, a user's counter, the power trace, or a rate for jobs without any
    finding          which of them a running job has
    putting          settings put to GPUs, and the way back
    measuring        the energy of a stretch that has passed
    probing, table   one probe: settle, then whole iterations; all of them as a frame
    watching         whether the job is still the one that was tuned; whether it is alone
    booking, ledger  what every stretch took, and what was saved
    models           a model of the GPU, where there is one; features for it
    believing        the search, its space, and questions to both
    core             what every state needs
    choosing         the best setting by what is known and what the job has in hand
    holding          a setting that is held: learnt from, steered, checked
    commands         what a person may ask while it works
    machine          the states before, one after another
    driving          who calls `advance`: a thread, or a stepped clock
    context          `workbench.tune`
"""
