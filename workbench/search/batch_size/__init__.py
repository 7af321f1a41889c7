"""Policies that choose the batch size of a recurring job."""
