"""What users would pick instead, measured beside this one. Runs in an environment of its own."""
