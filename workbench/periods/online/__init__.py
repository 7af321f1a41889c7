"""What `tracker` is made of.

    buffer        the newest rows, in constant memory
    search        looks for a period in readings as they come
    phase_lock    keeps step with a known one
    aliasing      guards against beats between a job and its sensor
"""
