"""Iteration periods in power traces: found in a recorded one, followed in a running one. No device.

    detect, estimators      the period of a whole trace; what it is made of
    vote                    one answer from several GPUs of one job
    tracker, online         the period of a running job; what it is made of
    fold, segment           iterations overlaid; where each one begins and what it cost
"""
