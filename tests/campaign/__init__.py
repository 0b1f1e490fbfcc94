"""What breaks on purpose, and an account of every job afterwards: `make campaign`."""
