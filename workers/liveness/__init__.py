"""Heartbeats, and which process a worker id stands for."""
