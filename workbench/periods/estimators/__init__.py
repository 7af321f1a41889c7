"""The parts of `detect`.

    signals                    a trace as evenly spaced signals, each with the shortest period it can show
    correlation, candidates    autocorrelation; periods that several estimators propose
    features, ranker           features that separate the iteration from its parts, multiples and chance; the
    choice shapes, precise            the shape of one period; its mean, scatter and boundary
    alignment                  where each iteration begins
"""
