"""Which workers and which jobs a caller may speak for."""
