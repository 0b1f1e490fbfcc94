"""Alternatives, measured beside this server. Runs in a separate environment."""
