"""Searches that the product is compared with."""
