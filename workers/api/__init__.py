"""The Admin API of what only `workers` knows: workers and the statistics of everything."""
