"""Heartbeats, incarnations, and the jobs that workers hold."""
