"""GPUs: what a device and a driver are, NVIDIA's driver, and changes of a setting that are restored.

    protocol, driver       what a device is; what a vendor's driver is, and which one this process uses
    gpu                    the base of every driver's devices; a method that is not overridden is absent
    nvml                   NVIDIA's driver (pynvml, milliwatts and millijoules are there alone)
    discovery, selection   list GPUs and open one, real or simulated; CUDA's numbers, UUIDs and PCI ids
    lease                  apply a setting, one holder at a time, and restore it
    control, chosen        a setting applied and undone by hand, its origin, difference and rights; the
                           last applied one
    journal                on disk: locks, so that one process at a time changes a GPU; the earlier settings
    restore, watchdog      settings left by killed processes; the child that restores them
    zeusd, mps, rapl       rights lent by the Zeus daemon, CUDA's MPS, CPU package and DRAM energy
"""
