"""Configurations tried: one trial, where trials run, sweeps, jobs that recur."""
