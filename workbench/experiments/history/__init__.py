"""The history of a recurring job, kept as an Optuna study."""
