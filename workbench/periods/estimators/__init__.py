"""The parts of `detect`.

- `signals`: A trace as evenly spaced signals, each with the shortest period it can show.
- `correlation`, `candidates`: Autocorrelation, and the periods that several estimators propose.
- `features`, `ranker`: Features of candidates, and the choice of the iteration among them.
- `shapes`, `precise`: The shape of one period, and its mean, scatter and boundary.
- `alignment`: The start of each iteration.
"""
