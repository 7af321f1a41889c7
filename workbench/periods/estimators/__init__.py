"""What `detect` is made of.

    signals                    a trace as evenly spaced signals, each with the shortest period it can show
    correlation, candidates    autocorrelation; periods that several estimators propose
    features, ranker           what separates the iteration from its parts, multiples and chance; which it is
    shapes, precise            the shape of one period; its mean, scatter and boundary
    alignment                  where each iteration begins
"""
