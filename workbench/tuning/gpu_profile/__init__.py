"""What `workbench profile-gpu` is made of.

collector   a plan of workloads and settings, and the measurements of it one by one
rows        the file that keeps them, and the training frame
"""
