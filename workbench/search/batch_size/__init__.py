"""Policies that choose the batch size of a recurring job.

    policy, make               the common interface; a policy by its name
    history                    evidence for a policy: runs, profiles, counts per batch size
    zeus                       the paper's policy: pruning exploration, Gaussian Thompson sampling, early stop
    knowledge_gradient         our policy: the value of a trial, and the time to stop a run
    epochs                     epochs to the target, cost of an epoch and failure rate of each batch size
"""
