"""`workbench profile-gpu`.

    command     the command, and the models that it trains
    collector   workloads measured at several settings, and the file of these measurements
    workloads   loads of graded intensity
"""
