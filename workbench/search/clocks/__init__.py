"""Which power limit or clocks a running job is put to.

- `effects`, `knowledge`, `descent`: The tuner's method. Every block of iterations is a measurement.
- `power_profile`: The next power limit to measure inside a recurring job, by the same method.
- `gpoeo`: GPOEO's golden section, with the methods of `Descent`.
"""
