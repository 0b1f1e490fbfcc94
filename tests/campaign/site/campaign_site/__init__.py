"""A separate site, independent of the tests, so that it also runs on an earlier release."""
