"""What `workbench profile-gpu` is made of.

    command     the command itself
    collector   a plan of workloads and settings, and the measurements of it one by one
    workloads   loads of graded intensity
    rows        the file that keeps them, and the training frame
"""
