"""Breaks things on purpose, and accounts for every job afterwards: `make campaign`."""
