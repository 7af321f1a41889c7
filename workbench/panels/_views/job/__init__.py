"""The panel of a job on several GPUs."""
