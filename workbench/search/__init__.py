"""What to try next: objectives, policies that choose batch sizes, and what they believe.

    objective            one number of a time and an energy, lower is better
    history              what a policy may see: runs, profiles, milestones; `Evidence` is the same, counted
    bandit               `Proposal` and `Policy`, the one interface; `make_policy` by name
    zeus_policy          the paper's policy: pruning exploration, Gaussian Thompson sampling, early stop
    shapes               a belief about a curve over batch sizes, Gaussian given its shape
    epochs               belief about the epochs that each batch size needs
    knowledge_gradient   our policy: what a try is worth, and when to stop a run
    power_curve          time and power over power limits, fitted to a few slices
    power_profile        which limit to measure next inside a running job, and what was learned
    predictor            time and energy at every clock and limit, foretold from features; `prediction` is
                         what it is made of
    attempts, owners     a recurrence as it is kept; who runs it, and whether that process still lives
    study, storages      the history as an Optuna study, in a SQLite file or any Optuna storage
    samplers, exchange   the policies as Optuna samplers; history as CSV
    beliefs, recorded    what a history says under an objective; one that was made elsewhere, played again

Nothing here knows a device, and only the history's keepers know Optuna. Decisions are functions of history,
space, objective and a random generator.
"""
