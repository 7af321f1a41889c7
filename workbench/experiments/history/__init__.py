"""The history of a recurring job, kept as an Optuna study.

    study, storage      the study, in a SQLite file or any Optuna storage
    attempts            a recurrence as it is kept; who runs it, and whether that process still lives
    optuna_bridge       attempts counted for a policy; Optuna's samplers as policies
    csv                 the history as a frame and as CSV
    outlook, replay     a history under an objective; one made elsewhere, played again
"""
