"""What power limits do to a V100 that trains, for policies that may set them."""

from __future__ import annotations

from .power import CapLevel

# Means over 14 workloads and cards whose power limits Zeus (You et al., NSDI'23; traces under Apache-2.0) has
# swept, each relative to its own highest limit; `benchmarks/cluster_caps.py` works them out from the files.
V100_LIMITS = (
    CapLevel(power_limit_w=225.0, speed=0.9856, active=0.9458),
    CapLevel(power_limit_w=200.0, speed=0.9779, active=0.8661),
    CapLevel(power_limit_w=175.0, speed=0.9518, active=0.7753),
    CapLevel(power_limit_w=150.0, speed=0.931, active=0.6667),
    CapLevel(power_limit_w=125.0, speed=0.8616, active=0.5395),
)
