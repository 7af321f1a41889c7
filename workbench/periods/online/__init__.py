"""What `tracker` is made of: constant memory, the search for a rhythm, the lock on it, and a witness
against aliasing.
"""
