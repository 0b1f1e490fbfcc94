"""Limits a caller to the workers for which it may act, and to the jobs that it may access."""
