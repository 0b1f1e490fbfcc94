"""The workers for which a caller may act, and the jobs that it may access."""
