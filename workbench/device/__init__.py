"""GPUs: the protocol everybody uses, the NVML driver behind it, and changes of a setting that are put back.

    protocol               what a device is
    nvml                   the only door to the driver (pynvml, milliwatts and millijoules are there alone)
    discovery, selection   list GPUs and open one, real or simulated; which one is meant: index, UUID, PCI id
    lease                  apply a setting, one holder at a time; restore it
    settings               the active setting, how a chosen one differs, which rights the change takes
    journal, locks         what was found on a GPU before the change; one process at a time changes it
    restore, watchdog      put back by whoever comes next; the child that does it when its parent was killed
    zeusd, rapl            rights lent by the Zeus daemon; CPU package and DRAM energy
"""
