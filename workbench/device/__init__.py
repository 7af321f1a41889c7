"""GPUs: the protocol everybody talks to, the NVML driver behind it, and changing a setting so that it is put
back.

protocol   what a device is
nvml       the only door to the driver (pynvml, milliwatts and millijoules live there alone)
visible    which GPU is meant: index, UUID, PCI id, CUDA_VISIBLE_DEVICES
control    apply a setting, one holder at a time, with a journal; restore it
watchdog   the child that restores when its parent was killed (standard library only)
rapl       CPU package and DRAM energy, where Linux lets it be read
"""
