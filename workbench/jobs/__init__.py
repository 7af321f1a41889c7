"""A training on several GPUs as one job: ranks and nodes, waiting GPUs, plans of pipelines."""
