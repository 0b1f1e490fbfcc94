"""A site of its own, which knows nothing of the tests: it also runs on an earlier release."""
