"""The parts of a model of one GPU's clocks; the door is `surrogates.predictor`.

    curves      a training frame as relative curves: one row a workload, one column a setting
    physics     the card's share of the answer: a roofline for time, static and dynamic and memory power
    boosting    LightGBM over the features, monotone where physics is; quantiles
    card        physics and trees blended for one card, with what grouped cross-validation says of them
    surface     from the settings of the training set to any setting of the card, power limits included
    belief      a Gaussian over all settings at once: what one probe says of all others, and which probe says
                most
    choice      the least energy within a slowdown, by what is believed
    files       one file per model
"""
