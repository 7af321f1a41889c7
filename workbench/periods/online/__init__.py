"""The parts of `tracker`.

    buffer        the newest rows, in constant memory
    search        searches for a period in incoming readings
    phase_lock    tracks a known period
    aliasing      detects beats between a job and its sensor
"""
