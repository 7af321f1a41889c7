"""Policies that choose the batch size of a recurring job.

    policy, make               the one interface; a policy by its name
    history                    what a policy sees: runs, profiles, counted per batch size
    zeus                       the paper's policy: pruning exploration, Gaussian Thompson sampling, early stop
    knowledge_gradient         our policy: what a try is worth, and when to stop a run
    epochs                     how many epochs each batch size needs, what one costs, how often runs fail
"""
