"""The parts of a model of one GPU's clocks; `surrogates.predictor` puts them together.

    curves      a training frame as relative curves: one row per workload, one column per setting
    physics     the card's laws: a roofline for time; static, dynamic and memory power
    trees       LightGBM and the laws together, and their error
    surface     from the settings of the training set to any setting of the card, power limits included
"""
