"""The workers that a caller may speak for, and the jobs it may touch."""
