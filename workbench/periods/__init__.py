"""Iteration periods in power traces: detected in a recorded trace, tracked in a running job. No device
access.

    detect, estimators      the period of a whole trace, and its parts
    vote                    one answer from several GPUs of one job
    tracker, online         the period of a running job, and its parts
    fold, segment           iterations overlaid; begin and energy of each
"""
