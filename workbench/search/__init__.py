"""What to try next: objectives, policies that choose batch sizes, and what they believe.

    objective            one number of a time and an energy, lower is better
    history              what a policy may see: runs, profiles, milestones; `Evidence` is the same, counted
    bandit               `Proposal` and `Policy`, the one interface; `make_policy` by name
    zeus_policy          the paper's policy: pruning exploration, Gaussian Thompson sampling, early stop
    shapes               a belief about a curve over batch sizes, Gaussian given its shape
    epochs               belief about the epochs that each batch size needs
    knowledge_gradient   our policy: what a try is worth, and when to stop a run
    beliefs, recorded    what a history says under an objective, to be looked at; one that was made elsewhere, played again

Nothing here knows a device or Optuna. Decisions are functions of history, space, objective and a random generator.
"""
