"""What `period` is made of: even signals, autocorrelation and spectrum, candidates and their features, and
the ranker.
"""
