"""Which power limit or clocks a running job is put to.

- `effects`, `knowledge`, `descent`: The tuner's method. Every block of iterations is a measurement.
- `power_profile`: The next power limit to measure inside a recurring job, by the same method.
- `base`, `gpoeo`: GPOEO's golden section, and what it shares with other searches by trials.
"""
