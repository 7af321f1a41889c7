"""Iteration periods in power traces: detected in a recorded trace, tracked in a running job. No device
access.

- `detect`, `estimators`: The period of a whole trace, and the parts of its detector.
- `vote`: One answer from several GPUs of one job.
- `tracker`, `online`: The period of a running job, and the parts of its tracker.
- `fold`, `segment`: Overlaid iterations, and the start and cost of each.
"""
