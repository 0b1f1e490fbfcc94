"""What a worker may be given, and waiting for it."""
