"""What `make bench` runs. Absolute numbers move with the machine: compare within one run."""
