"""The benchmarks of `make bench`. Absolute numbers depend on the machine: compare within a run."""
